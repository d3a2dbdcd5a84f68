//! What an agent does all day, in 300 steps, each a command: edits, builds, tests, commits, and a server that
//! it starts, asks, restarts and stops. With `isolation = "session"` the server is left in the background.
//! With `isolation = "command"` it is a command that stays.

use std::fs;

use kennel::{Detached, Isolation, Session, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{in_time, shell};
use crate::{
    network::publish::{connect, exchange, outside},
    support::{World, eventually, has, repository, require},
};

const ROUNDS: usize = 30;

/// In how many rounds one server serves.
const SERVED: usize = 5;

const SERVER: &str = "import http.server
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        print('asked', flush=True)
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
";

const START: &str = "exec /usr/bin/python3 server.py";

/// Waits until somebody answers, or nobody does.
const ANSWERS: &str = "until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.02; done; echo up";
const SILENT: &str = "while curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.02; done; echo down";

/// The session, what it shares, and how many steps were done.
struct Agent {
    session: Session,
    isolation: Isolation,
    server: Option<Detached>,
    steps: usize,
}

impl Agent {
    async fn step(&mut self, script: &str, wanted: &str) {
        self.steps += 1;
        assert_eq!(shell(&self.session, script).await, wanted, "step {}: {script}", self.steps);
    }

    async fn start(&mut self) {
        match self.isolation {
            Isolation::Session => {
                let script = format!("({START}) > server.log 2>&1 & echo $! > /tmp/pid");
                self.step(&script, "").await;
            }
            _ => {
                self.steps += 1;
                let mut command = self.session.command("sh");
                self.server = Some(in_time(command.args(["-c", START]).detach()).await.unwrap());
            }
        }
    }

    async fn stop(&mut self) {
        match self.server.take() {
            None => self.step("kill $(cat /tmp/pid) && tail -n 1 server.log", "asked\n").await,
            Some(server) => {
                self.steps += 1;
                server.signal(Signal::TERM);
                assert_eq!(in_time(server.wait()).await.unwrap().exit_code(), 143, "SIGTERM");
            }
        }
        let left = self.session.stats().background;
        self.step(SILENT, "down\n").await;
        eventually("the server is gone", || self.session.stats().background < left.max(1)).await;
    }

    async fn works(&mut self) {
        self.step("/usr/bin/python3 -m venv --without-pip env", "").await;
        for round in 1..=ROUNDS {
            self.step(&format!("echo 'version {round}' > app.txt; sed -i s/version/VERSION/ app.txt"), "")
                .await;
            self.step("make && make", "built\nmake: 'build/app' is up to date.\n").await;
            self.step("sh test.sh", "passed\n").await;
            if round % SERVED == 1 {
                self.start().await;
                self.step(ANSWERS, "up\n").await;
            }
            let page = format!("VERSION {round}\n");
            self.step("curl -s http://127.0.0.1:8000/build/app", &page).await;
            // From the host, and from the embedding program.
            let address = self.session.published()[0].address;
            let ask = "GET /build/app HTTP/1.0\r\n\r\n";
            let answer = outside(move || exchange(connect(address), ask.as_bytes())).await;
            assert!(String::from_utf8_lossy(&answer).ends_with(&page), "{answer:?}");
            let mut stream = in_time(self.session.connect(8000)).await.unwrap();
            stream.write_all(ask.as_bytes()).await.unwrap();
            let mut answer = String::new();
            in_time(stream.read_to_string(&mut answer)).await.unwrap();
            assert!(answer.ends_with(&page), "{answer}");
            self.step(
                ". env/bin/activate; python -c 'import sys; print(sys.prefix != sys.base_prefix)'",
                "True\n",
            )
            .await;
            let commit =
                format!("git add app.txt && git -c user.name=a -c user.email=a@b commit -qm {round}");
            self.step(&format!("{commit} && git rev-list --count HEAD"), &format!("{round}\n")).await;
            // What the next command finds of the last one.
            let notes = if self.isolation == Isolation::Session { round } else { 1 };
            self.step("echo note >> /tmp/notes; wc -l < /tmp/notes", &format!("{notes}\n")).await;
            self.step("sh -c 'exit 3'; echo $?; ls no-such-file 2>&1 | wc -l", "3\n1\n").await;
            if round % SERVED == 0 {
                self.stop().await;
            }
        }
        while self.steps < 300 {
            self.step("cat build/app", &format!("VERSION {ROUNDS}\n")).await;
        }
    }
}

async fn a_day(isolation: Isolation) {
    require!(
        has("git") && has("make") && has("curl") && has("/usr/bin/python3"),
        "git, make, curl and python3"
    );
    let world = World::of(repository());
    let put = |name: &str, text: &str| fs::write(world.at(name), text).unwrap();
    fs::remove_file(world.at(".git/hooks/pre-commit")).unwrap();
    put("server.py", SERVER);
    put("Makefile", "build/app: app.txt\n\t@mkdir -p build && cp app.txt build/app && echo built\n");
    put("test.sh", "cmp -s app.txt build/app && echo passed\n");
    let policy = world.policy().isolation(isolation).publish("0:8000");
    let session = Session::prepare(&policy).await.unwrap();
    let mut agent = Agent { session, isolation, server: None, steps: 0 };
    agent.works().await;
    assert!(agent.steps >= 300, "{}", agent.steps);
    let stats = agent.session.stats();
    assert_eq!((stats.running, stats.background), (0, 0));
    in_time(agent.session.shutdown()).await;
}

#[tokio::test]
async fn three_hundred_steps_where_things_live_on() {
    a_day(Isolation::Session).await;
}

#[tokio::test]
async fn three_hundred_steps_where_each_command_is_alone() {
    a_day(Isolation::Command).await;
}
