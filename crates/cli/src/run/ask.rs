//! `--ask`: asks the person at the terminal about hosts that no rule decides.
//!
//! The command runs on a terminal of its own, so every key passes through Kennel. While a question is open,
//! keys answer it and the command gets none, and the command's output waits. So a command can neither answer
//! nor imitate a question to which an answer counts.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use kennel::{
    Decision, Error, NetworkMode, NetworkRequest, Policy, internal::escape::harmless, report::PolicyError,
};
use tokio::sync::oneshot;

use crate::{
    args::{policy::PolicyFlags, values::short},
    config,
    process::{start_thread, thread_error},
    report,
    terminal::{
        screen::SCREEN,
        style::{self, Paint},
        typist::Filter,
    },
};

/// How long a question stays open. No answer is no.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the proxy waits for an answer: each question before this one may take its time.
pub(crate) const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Keys that arrive so soon after a question appeared were meant for the command.
const TOO_SOON: Duration = Duration::from_millis(400);

/// How often an open question looks whether somebody still waits for its answer.
const LOOK: Duration = Duration::from_millis(100);

/// Ends colours, hidden text and other character sets of the command.
const PLAIN: &str = "\u{1b}[0m\u{1b}(B\u{f}";

/// ^C: the answer is no, and the command gets the key.
const INTERRUPT: u8 = 3;

/// A question, and where its answer goes.
type Question = (NetworkRequest, oneshot::Sender<Decision>);

/// Where keys go while a question is open.
type OpenQuestion = Arc<Mutex<Option<Sender<Vec<u8>>>>>;

/// The place where questions are asked.
pub(crate) struct Prompt {
    questions: Sender<Question>,
    open: OpenQuestion,
    /// Rules to add to the file.
    always: Arc<Mutex<Vec<String>>>,
    /// The policy file that `always` adds to.
    file: Option<PathBuf>,
    /// Whether the command has ended, so that nobody needs an answer.
    is_over: Arc<AtomicBool>,
}

impl Prompt {
    /// Prepares to ask, and makes the policy one with a proxy.
    ///
    /// # Errors
    /// There is no terminal, or the policy has a network that asks nobody.
    pub(crate) fn open(flags: &PolicyFlags, policy: &mut Policy) -> Result<Self, Error> {
        let no_terminal = |source| Error::Io { what: "--ask", source };
        if !io::stdin().is_terminal() {
            let reason = "answers come from a terminal, and standard input is none, but a pipe or a file";
            return Err(no_terminal(io::Error::other(reason)));
        }
        let terminal = File::options().write(true).custom_flags(libc::O_NOCTTY).open("/dev/tty");
        let terminal =
            terminal.map_err(|_| no_terminal(io::Error::other("there is no terminal to ask on")))?;
        // Where a rule would count, so does an answer.
        if policy.clone().allow("*:443").effective_network() == NetworkMode::Proxy {
            policy.network.mode = Some(NetworkMode::Proxy);
        }
        if policy.network.mode != Some(NetworkMode::Proxy) || policy.network.proxy.is_some() {
            let reason =
                "only Kennel's own proxy asks: use it with --net proxy, and a profile that has a network";
            return Err(PolicyError::Value {
                key: "--ask".to_owned(),
                value: String::new(),
                reason: reason.to_owned(),
            }
            .into());
        }
        let file = config::rules::file_for(flags);
        let (questions, asked) = channel();
        let (open, always, is_over) = (OpenQuestion::default(), Arc::default(), Arc::default());
        let asker = Asker {
            terminal,
            open: Arc::clone(&open),
            always: Arc::clone(&always),
            file: file.clone(),
            is_over: Arc::clone(&is_over),
        };
        start_thread(move || asker.serve(&asked)).map_err(thread_error)?;
        Ok(Self { questions, open, always, file, is_over })
    }

    /// Withdraws the questions of a command that has ended, so that the rest of its output is shown.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// The callback for the proxy.
    pub(crate) fn callback(&self) -> impl Fn(NetworkRequest) -> Answering + Send + Sync + 'static {
        // The sender is behind a lock only because the callback is shared.
        let questions = Mutex::new(self.questions.clone());
        move |request| {
            let (sender, answer) = oneshot::channel();
            let sent = lock(&questions).send((request, sender));
            Box::pin(async move {
                // The asker is gone: nobody can say yes.
                if sent.is_err() { Decision::Deny } else { answer.await.unwrap_or(Decision::Deny) }
            })
        }
    }

    /// Takes keys out of what is typed while a question is open.
    pub(crate) fn without_answers(&self) -> Filter {
        let open = Arc::clone(&self.open);
        Box::new(move |keys| match &*lock(&open) {
            Some(answer) => {
                let interrupts = keys.contains(&INTERRUPT);
                let _ = answer.send(keys);
                if interrupts { vec![INTERRUPT] } else { Vec::new() }
            }
            None => keys,
        })
    }

    /// Adds what is always allowed to the policy file. The command has ended, so it cannot interfere.
    pub(crate) fn settle(&self) {
        let rules = std::mem::take(&mut *lock(&self.always));
        let Some(file) = self.file.as_ref().filter(|_| !rules.is_empty()) else { return };
        match config::rules::add(file, &rules) {
            Ok(()) => report::say(format_args!("kennel: {} now allows {}", file.display(), rules.join(", "))),
            Err(error) => report::error(&error),
        }
    }
}

/// The answer to one question, when it comes.
pub(crate) type Answering = std::pin::Pin<Box<dyn Future<Output = Decision> + Send>>;

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a person answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Once,
    Session,
    Always,
    No,
    /// The time was up.
    Nothing,
    /// Nobody waits for it any more.
    Withdrawn,
}

/// Asks on the terminal, one question after the other, on a thread of its own: a write to a terminal may
/// block.
struct Asker {
    terminal: File,
    open: OpenQuestion,
    always: Arc<Mutex<Vec<String>>>,
    file: Option<PathBuf>,
    is_over: Arc<AtomicBool>,
}

impl Asker {
    fn serve(&self, questions: &Receiver<Question>) {
        while let Ok((request, sender)) = questions.recv() {
            let is_withdrawn = || sender.is_closed() || self.is_over.load(Relaxed);
            if is_withdrawn() {
                continue;
            }
            let rule = rule(&request.host, request.port);
            let answer = self.ask(&rule, is_withdrawn);
            if answer == Answer::Always {
                lock(&self.always).push(rule);
            }
            let _ = sender.send(match answer {
                Answer::Once => Decision::Allow,
                Answer::Session | Answer::Always => Decision::AllowForSession,
                Answer::No | Answer::Nothing | Answer::Withdrawn => Decision::DenyForSession,
            });
            if answer == Answer::Nothing {
                // Nobody is there. Who waits behind this question need not wait as long again.
                for (_, sender) in questions.try_iter() {
                    let _ = sender.send(Decision::DenyForSession);
                }
            }
        }
    }

    /// Asks one question.
    fn ask(&self, rule: &str, is_withdrawn: impl Fn() -> bool) -> Answer {
        // The command's output waits meanwhile.
        let _screen = lock(&SCREEN);
        let (sender, keys) = channel();
        *lock(&self.open) = Some(sender);
        let paint = Paint::stderr();
        let name = paint.paint(style::NOTE, "kennel:");
        let rule = paint.paint(style::LITERAL, &harmless(rule));
        let choices = choices(self.file.as_ref().map(|file| harmless(&short(file))).as_deref());
        self.show(&format!("\r\n{PLAIN}{name} allow {rule}?\r\n{choices}"));
        let answer = self.read(&keys, is_withdrawn);
        *lock(&self.open) = None;
        self.show(match answer {
            Answer::Nothing => "no answer, so no\r\n",
            Answer::Withdrawn => "(it is not needed any more)\r\n",
            _ => "\r\n",
        });
        answer
    }

    /// Reads the line that answers.
    fn read(&self, keys: &Receiver<Vec<u8>>, is_withdrawn: impl Fn() -> bool) -> Answer {
        let (begin, mut line) = (Instant::now(), Line::default());
        loop {
            let Some(left) = PATIENCE.checked_sub(begin.elapsed()) else { return Answer::Nothing };
            let typed = match keys.recv_timeout(left.min(LOOK)) {
                Ok(typed) if typed.contains(&INTERRUPT) => return Answer::No,
                Ok(_) if begin.elapsed() < TOO_SOON => continue,
                Ok(typed) => typed,
                Err(RecvTimeoutError::Timeout) if is_withdrawn() => return Answer::Withdrawn,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Answer::No,
            };
            for key in typed {
                match line.typed(key, self.file.is_some()) {
                    Some(Ok(answer)) => return answer,
                    Some(Err(echo)) => self.show(&echo),
                    None => {}
                }
            }
        }
    }

    /// Writes to the terminal. If it is gone, the time limit of the question answers.
    fn show(&self, text: &str) {
        let _ = (&self.terminal).write_all(text.as_bytes());
    }
}

/// The width of the narrowest terminal that people use.
const COLUMNS: usize = 80;

/// The lines that say what may be answered. `file` is where `always` is kept.
fn choices(file: Option<&str>) -> String {
    let start = "  always adds it to ";
    let (place, always) = match file {
        Some(file) => {
            let most = COLUMNS - start.len();
            let length = file.chars().count();
            let end: String = file.chars().skip((length + 1).saturating_sub(most)).collect();
            let file = if length > most { format!("…{end}") } else { file.to_owned() };
            (format!("{start}{file}\r\n"), ", [a]lways")
        }
        None => (String::new(), ""),
    };
    format!("{place}  [o]nce, for this [s]ession{always}, [N]o ({} s): ", PATIENCE.as_secs())
}

/// The rule that allows exactly what is asked for.
pub(crate) fn rule(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The line that is being typed.
#[derive(Default)]
struct Line(String);

impl Line {
    /// Takes a key. Returns the answer at the end of a line, or else what the terminal shows for the key.
    fn typed(&mut self, key: u8, has_file: bool) -> Option<Result<Answer, String>> {
        match key {
            b'\r' | b'\n' => match &*std::mem::take(&mut self.0).to_ascii_lowercase() {
                "o" | "once" => Some(Ok(Answer::Once)),
                "s" | "session" => Some(Ok(Answer::Session)),
                "a" | "always" if has_file => Some(Ok(Answer::Always)),
                "" | "n" | "no" => Some(Ok(Answer::No)),
                _ => {
                    let always = if has_file { ", a" } else { "" };
                    Some(Err(format!("\r\n  please type o, s{always} or n, and Enter: ")))
                }
            },
            8 | 127 => self.0.pop().map(|_| Err("\u{8} \u{8}".to_owned())),
            b' '..=b'~' if self.0.len() < 16 => {
                self.0.push(key.into());
                Some(Err(char::from(key).to_string()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(keys: &str, has_file: bool) -> Option<Answer> {
        let mut line = Line::default();
        keys.bytes().find_map(|key| line.typed(key, has_file)?.ok())
    }

    #[test]
    fn only_a_whole_line_of_a_known_word_is_yes() {
        for (keys, expected) in [
            ("o\r", Some(Answer::Once)),
            ("S\n", Some(Answer::Session)),
            ("always\r", Some(Answer::Always)),
            ("\r", Some(Answer::No)),
            ("no\r", Some(Answer::No)),
            ("x\u{7f}o\r", Some(Answer::Once)),
            ("oo", None),
            ("y\r", None),
            ("yes\rn\r", Some(Answer::No)),
            ("\u{1b}[Ao\r", None),
        ] {
            assert_eq!(answer(keys, true), expected, "{keys:?}");
        }
        assert_eq!(answer("a\r", false), None);
    }

    #[test]
    fn what_may_be_answered_fits_80_columns() {
        let long = format!("~/{}/kennel.toml", "deep/".repeat(40));
        for file in [None, Some("~/.config/kennel/config.toml"), Some(&*"x".repeat(60)), Some(&*long)] {
            let text = choices(file);
            // The answer takes a column.
            assert!(
                text.lines().all(|line| line.chars().count() < 80 + usize::from(file.is_some())),
                "{text}"
            );
            assert_eq!(text.contains("[a]lways"), file.is_some());
        }
        assert!(choices(Some(&long)).contains("…") && choices(Some(&long)).contains("/kennel.toml\r\n"));
    }

    #[test]
    fn the_rule_is_for_this_host_and_port_alone() {
        let rules = ["a.example", "192.0.2.1", "2001:db8::1"].map(|host| rule(host, 443));
        for rule in &rules {
            Policy::default().allow(rule).validate().expect(rule);
        }
        assert_eq!(rules, ["a.example:443", "192.0.2.1:443", "[2001:db8::1]:443"]);
    }
}
