//! Writes the tables of docs/compatibility.md from the comments of the jobs, and checks that they are
//! current. People write the rest of the page.
//!
//! To update them after a change: `KENNEL_WRITE=1 cargo test --test it everyday::table`.

use std::{env, fs, path::Path};

use super::{JOBS, Job};
use crate::support::{is_emulated, is_second_pass, skip};

/// The tables stand between these lines.
const MARKS: [&str; 2] = ["<!-- everyday jobs -->\n", "<!-- end -->\n"];

/// The subjects, in their order in the document.
const SUBJECTS: [&str; 12] = [
    "Version control",
    "C, C++ and build tools",
    "Rust",
    "Python",
    "JavaScript",
    "Other languages",
    "Databases and servers",
    "Browsers and documents",
    "Debuggers and tracers",
    "Terminals and editors",
    "Files and data",
    "Network, keys and rights",
];

#[test]
fn every_script_is_a_job_and_a_row() {
    if is_second_pass() || is_emulated() {
        return skip(module_path!(), "the documents are not here");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let scripts = fs::read_dir(root.join("tests/it/everyday/jobs")).unwrap();
    let mut scripts: Vec<_> =
        scripts.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    scripts.sort();
    let mut jobs: Vec<_> = JOBS.iter().map(|(name, _)| format!("{name}.sh")).collect();
    jobs.sort();
    assert_eq!(scripts, jobs, "each file in jobs/ has a line in `jobs!`");
    let file = root.join("docs/compatibility.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let current = format!("{before}{}{}{}{after}", MARKS[0], tables(), MARKS[1]);
    assert!(current.lines().count() <= 250, "docs/compatibility.md is too long");
    if env::var_os("KENNEL_WRITE").is_some() {
        fs::write(&file, &current).unwrap();
    } else {
        assert!(
            page == current,
            "docs/compatibility.md is not current: KENNEL_WRITE=1 cargo test --test it everyday::table"
        );
    }
}

fn tables() -> String {
    let jobs: Vec<Job> = JOBS.iter().map(|(name, text)| Job::parse(name, text)).collect();
    for job in &jobs {
        assert!(SUBJECTS.contains(&job.field("subject")), "{}: no such subject", job.name);
    }
    let mut text = String::new();
    for subject in SUBJECTS {
        text += &format!("\n### {subject}\n\n| tool | job | inside | test |\n| --- | --- | --- | --- |\n");
        for job in jobs.iter().filter(|job| job.field("subject") == subject) {
            text += &row(job);
        }
    }
    text + "\n"
}

/// A job as a row: tool and version, what it does, how it goes inside, and what proves that.
fn row(job: &Job) -> String {
    let mut inside = match (job.field("fails"), job.field("flags")) {
        ("", "") => "works".to_owned(),
        ("", flags) => format!("works with `{}`", flags.replace("$HOME", "~").replace("$PORT", "PORT")),
        (fails, _) => format!("does not, and says `{fails}`"),
    };
    if !job.field("user").is_empty() {
        inside += ", not as root";
    }
    if !job.field("note").is_empty() {
        inside += &format!(": {}", job.field("note"));
    }
    let by = if job.field("by-hand").is_empty() { "" } else { ", by hand" };
    let [tool, version, does] = ["tool", "version", "job"].map(|key| job.field(key));
    assert!(!tool.is_empty() && !version.is_empty() && !does.is_empty(), "{}: a field is missing", job.name);
    format!("| {tool} {version} | {does} | {inside} | `{}`{by} |\n", job.name)
}
