//! Languages of `POST /run_code`: what becomes of a piece of code.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::template::USUAL_TEMPLATE;

/// `[language.NAME]`: a file with the code, and commands in its directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Language {
    /// The name of the file with the code.
    pub(crate) file: String,
    /// What runs before it, with a time of its own.
    pub(crate) compile: Option<Vec<String>>,
    pub(crate) run: Vec<String>,
    /// The template of its sandboxes.
    #[serde(default = "usual_template")]
    pub(crate) template: String,
}

fn usual_template() -> String {
    USUAL_TEMPLATE.to_owned()
}

/// Those of the file, and the usual ones that it does not replace.
pub(crate) fn languages(of_file: BTreeMap<String, Language>) -> BTreeMap<String, Language> {
    let usual = [
        ("python", "main.py", None, "python3 main.py"),
        ("bash", "main.sh", None, "bash main.sh"),
        ("cpp", "main.cpp", Some("g++ -std=c++17 main.cpp -o main"), "./main"),
        ("nodejs", "main.js", None, "node main.js"),
    ];
    let words = |line: &str| line.split(' ').map(ToOwned::to_owned).collect();
    let mut all: BTreeMap<_, _> = usual
        .into_iter()
        .map(|(name, file, compile, run)| {
            let (file, compile, run) = (file.to_owned(), compile.map(words), words(run));
            (name.to_owned(), Language { file, compile, run, template: usual_template() })
        })
        .collect();
    all.extend(of_file);
    all
}

impl Language {
    /// Whether it can be used: the words of a problem otherwise.
    pub(crate) fn check(&self, has_template: impl Fn(&str) -> bool) -> Result<(), String> {
        if self.file.is_empty() || self.file.contains('/') {
            return Err(format!("file: {:?} is no name of a file", self.file));
        }
        if self.run.is_empty() || self.compile.as_ref().is_some_and(Vec::is_empty) {
            return Err("run, compile: a program and its arguments are expected".to_owned());
        }
        if !has_template(&self.template) {
            return Err(format!("template: {} is not there", self.template));
        }
        Ok(())
    }
}
