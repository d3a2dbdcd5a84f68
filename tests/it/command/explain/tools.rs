//! Real programs that are refused something: the refusal is named, and the named flag helps.

use std::{fs, path::Path};

use super::explained;
use crate::support::{TempDir, has, require, workspace};

/// The workspace, a directory that the sandbox does not show, and one that is granted read-only.
struct Places {
    workspace: TempDir,
    hidden: TempDir,
    read_only: TempDir,
}

impl Places {
    fn new() -> Self {
        let places = Self { workspace: workspace(), hidden: workspace(), read_only: workspace() };
        for place in [&places.hidden, &places.read_only] {
            fs::write(place.path().join("f"), "x\n").unwrap();
        }
        places
    }

    fn fill(&self, text: &str) -> String {
        [("{hid}", self.hidden.path()), ("{ro}", self.read_only.path()), ("{ws}", self.workspace.path())]
            .iter()
            .fold(text.to_owned(), |text, (name, path)| text.replace(name, &path.display().to_string()))
    }
}

/// The script fails, Kennel names the subject, and with the flag of that line the script succeeds.
fn advice_helps(places: &Places, script: &str, subject: &str) {
    let (script, subject) = (places.fill(script), places.fill(subject));
    let granted = places.fill("--ro={ro}");
    let (code, told) = explained(places.workspace.path(), &[&granted], &script);
    assert_ne!(code, 0, "{script}");
    let line = told.iter().find(|(_, told, ..)| *told == subject);
    let (.., remedy) = line.unwrap_or_else(|| panic!("{script}: {told:?}"));
    follow(places.workspace.path(), &[&granted], remedy.as_deref(), &script);
}

/// Runs the script with the flag. A flag for a place that is granted already replaces its grant.
fn follow(workspace: &Path, flags: &[&str], remedy: Option<&str>, script: &str) {
    let remedy = remedy.unwrap_or_else(|| panic!("{script}: no flag"));
    let (flag, place) = remedy.split_once(' ').expect("a flag and its value");
    let kept = flags.iter().copied().filter(|flag| !flag.ends_with(place)).chain([flag, place]);
    let (code, told) = explained(workspace, &kept.collect::<Vec<_>>(), script);
    assert_eq!((code, told), (0, vec![]), "{script} with {remedy}");
}

#[test]
fn shells() {
    let places = Places::new();
    for shell in ["dash", "bash", "zsh"].into_iter().filter(|shell| has(shell)) {
        for (script, subject) in [
            ("'cat < {hid}/f'", "{hid}/f"),
            ("'cd {hid}'", "{hid}"),
            ("'. {hid}/empty'", "{hid}/empty"),
            ("'echo > {ro}/new'", "{ro}/new"),
        ] {
            fs::write(places.hidden.path().join("empty"), "").unwrap();
            advice_helps(&places, &format!("{shell} -c {script}"), subject);
        }
    }
    advice_helps(&places, "dash -c 'echo > {hid}/new'", "{hid}/new");
}

#[test]
fn programs_of_the_system() {
    let places = Places::new();
    for (script, subject) in [
        ("cp {hid}/f .", "{hid}/f"),
        ("mkdir {hid}/made", "{hid}/made"),
        ("grep x {hid}/f", "{hid}/f"),
        ("find {hid}", "{hid}"),
        ("touch {ro}/f", "{ro}/f"),
        ("tar cf {ro}/a.tar f", "{ro}/a.tar"),
    ] {
        fs::write(places.workspace.path().join("f"), "x\n").unwrap();
        advice_helps(&places, script, subject);
    }
}

#[test]
fn git() {
    require!(has("git"), "git");
    let places = Places::new();
    let hidden = places.hidden.path().join("repository");
    let made = std::process::Command::new("git").arg("init").arg("-q").arg(&hidden).status().unwrap();
    assert!(made.success());
    advice_helps(&places, "git -C {hid}/repository status", "{hid}/repository");
    advice_helps(&places, "git --git-dir={hid}/repository/.git log --all", "{hid}/repository/.git");
    advice_helps(&places, "git clone -q {hid}/repository copy", "{hid}/repository");
    advice_helps(&places, "git init -q {ro}/made", "{ro}/made");
}

#[test]
fn python_and_pip() {
    require!(has("python3"), "python3");
    let places = Places::new();
    advice_helps(&places, "python3 -c 'open(\"{hid}/f\")'", "{hid}/f");
    advice_helps(&places, "python3 -c 'open(\"{ro}/f\", \"w\")'", "{ro}/f");
    fs::write(places.hidden.path().join("p.py"), "").unwrap();
    advice_helps(&places, "python3 {hid}/p.py", "{hid}/p.py");
}

#[test]
fn perl() {
    require!(has("perl"), "perl");
    let places = Places::new();
    advice_helps(
        &places,
        "perl -e 'open(F, \"<\", \"{hid}/f\") or die \"cannot open {hid}/f: $!\"'",
        "{hid}/f",
    );
}

#[test]
fn node() {
    require!(has("node"), "node");
    let places = Places::new();
    advice_helps(&places, "node -e 'require(\"fs\").readFileSync(\"{hid}/f\")'", "{hid}/f");
    advice_helps(&places, "node -e 'require(\"fs\").writeFileSync(\"{ro}/f\", \"\")'", "{ro}/f");
    fs::write(places.hidden.path().join("m.js"), "").unwrap();
    advice_helps(&places, "node {hid}/m.js", "{hid}/m.js");
}

#[test]
fn compilers() {
    require!(has("gcc") && has("make"), "gcc and make");
    let places = Places::new();
    fs::write(places.hidden.path().join("a.c"), "int main(void) { return 0; }\n").unwrap();
    fs::write(places.workspace.path().join("a.c"), "int main(void) { return 0; }\n").unwrap();
    fs::write(places.hidden.path().join("Makefile"), "all:\n\ttrue\n").unwrap();
    advice_helps(&places, "gcc -c {hid}/a.c", "{hid}/a.c");
    advice_helps(&places, "gcc -o {ro}/a a.c", "{ro}/a");
    advice_helps(&places, "make -C {hid}", "{hid}");
    advice_helps(&places, "make -f {hid}/Makefile", "{hid}/Makefile");
}

#[test]
fn a_file_that_is_granted_by_itself_can_be_replaced_with_its_directory() {
    let workspace = workspace();
    for place in [crate::support::workspace(), crate::support::workspace_in(Path::new("/var/tmp"))] {
        let conf = place.path().join("conf");
        fs::write(&conf, "1\n").unwrap();
        let script = format!("sed -i s/1/2/ {}", conf.display());
        let grant = format!("--rw={}", conf.display());
        let (code, told) = explained(workspace.path(), &[&grant], &script);
        let [(_, subject, basis, remedy)] = &*told else { panic!("{told:?}") };
        assert_eq!((code, subject, &**basis), (4, &conf.display().to_string(), "derived"));
        let directory = format!("--rw {}", place.path().display());
        assert_eq!(remedy.as_deref(), Some(&*directory));
        let (code, told) = explained(workspace.path(), &[&directory.replace(' ', "=")], &script);
        assert_eq!((code, told), (0, vec![]));
        assert_eq!(fs::read_to_string(&conf).unwrap(), "2\n");
    }
}
