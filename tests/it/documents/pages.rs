//! Rules for the text of documents: their length, their links, the policies that they show.

use std::fs;

use super::{DOCUMENTS, LENGTHS, OF_FEATURES, blocks, read, root};
use crate::support::skip;

/// Ends the test if there are no sources: a virtual machine and the second pass have only the test program.
macro_rules! require_sources {
    () => {
        if !root().join("Cargo.toml").exists() {
            skip(module_path!(), "the documents are not here");
            return;
        }
    };
}

#[test]
fn policies_are_valid() {
    require_sources!();
    let blocks: Vec<_> =
        blocks("docs/policy.md").into_iter().filter(|block| block.language == "toml").collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let parsed = kennel::Policy::from_toml(&block.lines.join("\n"));
        assert!(parsed.is_ok(), "docs/policy.md:{}: {}", block.line, parsed.unwrap_err());
    }
}

/// All documents; those in `docs` as the directory lists them.
fn all() -> Vec<String> {
    let inner = fs::read_dir(root().join("docs")).unwrap();
    let inner = inner.map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()));
    LENGTHS.iter().map(|(file, _)| (*file).to_owned()).chain(inner).collect()
}

#[test]
fn every_document_is_known_and_short() {
    require_sources!();
    for file in all() {
        let most = LENGTHS.iter().find(|(name, _)| *name == file).map(|(_, most)| *most);
        let is_known = DOCUMENTS.iter().chain(OF_FEATURES).any(|known| **known == file);
        assert!(most.is_some() || is_known, "tests/it/documents/mod.rs lacks {file}");
        let lines = read(&file).lines().count();
        assert!(most.is_none_or(|most| lines <= most), "{file} has {lines} lines, {most:?} are allowed");
    }
}

#[test]
fn links_lead_somewhere() {
    require_sources!();
    let mut wrong = Vec::new();
    for file in all() {
        for (number, link) in links(&read(&file)) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let there = root().join(&file);
            let there = if path.is_empty() { there } else { there.with_file_name("").join(path) };
            let text = fs::read_to_string(&there).unwrap_or_default();
            if !there.exists() || !(anchor.is_empty() || anchors(&text).iter().any(|known| known == anchor)) {
                wrong.push(format!("{file}:{number}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these lead nowhere:\n{}", wrong.join("\n"));
}

/// The name `kennel` on public indexes belongs to others.
#[test]
fn nobody_is_told_to_install_the_package_of_a_stranger() {
    require_sources!();
    let install =
        ["pip install", "uv add", "uv pip install", "pipx install", "uv tool install", "cargo install"];
    let of_stranger = |line: &str| {
        let Some(after) = install.iter().find_map(|words| Some(line.split_once(words)?.1)) else {
            return false;
        };
        // In a text, the command ends with its backtick.
        let after = after.split('`').next().unwrap_or_default();
        after.split_whitespace().any(|word| word.trim_matches(['\'', '"']).starts_with("kennel"))
    };
    assert!(of_stranger("pip install 'kennel[inspect]'") && !of_stranger("pip install './python[inspect]'"));
    let texts = all().into_iter().chain(["python/README.md", "python/pyproject.toml"].map(str::to_owned));
    for file in texts {
        let found = read(&file).lines().find(|line| of_stranger(line)).map(str::to_owned);
        assert_eq!(found, None, "{file}");
    }
}

#[test]
fn every_test_that_security_names_exists() {
    require_sources!();
    let text = read("SECURITY.md");
    let named: Vec<_> =
        text.split('`').skip(1).step_by(2).filter_map(|name| name.split_once(".rs::")).collect();
    assert!(named.len() > 50, "SECURITY.md names {} tests", named.len());
    for (file, test) in named {
        let source = read(&format!("{file}.rs"));
        let mut above = "";
        let is_test = source.lines().any(|line| {
            let found = line.trim_start_matches("async ").starts_with(&format!("fn {test}()"));
            let found = found && (above.contains("test]") || above.starts_with("#["));
            above = line;
            found
        });
        assert!(is_test, "SECURITY.md names {file}.rs::{test}");
    }
}

/// The lines of a document outside of its blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The links of a document to other documents and into itself, not those to the web. Text in backticks is no
/// link.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let plain = line.split('`').step_by(2).collect::<String>();
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found
            .extend(targets.filter(|target| !target.contains(':')).map(|target| (number, target.to_owned())));
    }
    found
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, heading) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let plain: String = text.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        let same = found.iter().filter(|known| **known == plain).count();
        found.push(if same == 0 { plain } else { format!("{plain}-{same}") });
    }
    found
}
