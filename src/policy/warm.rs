//! Interpreters that start before their command is known.

use crate::policy::Policy;
use crate::report::error::policy::PolicyError;

/// The most interpreters of a policy.
const MOST: usize = 8;

/// The most modules of an interpreter.
const MOST_MODULES: usize = 64;

impl Policy {
    pub(crate) fn check_warm(&self) -> Result<(), PolicyError> {
        if self.warm.len() > MOST {
            let reason = "a session keeps at most 8 interpreters";
            return Err(PolicyError::value("warm", self.warm.len().to_string(), reason));
        }
        for (program, modules) in &self.warm {
            let key = format!("warm.{program}");
            if !is_python(program) {
                let reason = "names no Python: the last part of its name must begin with `python`";
                return Err(PolicyError::value("warm", program, reason));
            }
            if modules.len() > MOST_MODULES {
                let reason = "an interpreter imports at most 64 modules ahead";
                return Err(PolicyError::value(&key, modules.len().to_string(), reason));
            }
            if let Some(module) = modules.iter().find(|module| !is_module(module)) {
                let reason = "is no name of a module: names and dots, as after `import`";
                return Err(PolicyError::value(&key, module, reason));
            }
        }
        Ok(())
    }
}

/// Whether a program is called as a Python: `python3`, `/srv/venv/bin/python`.
fn is_python(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") && !program.contains('\0')
}

/// Whether a text is a name as after `import`. Python itself decides about letters that are not ASCII.
fn is_module(text: &str) -> bool {
    text.split('.').all(|part| {
        let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
        part.chars().all(is_letter) && part.chars().next().is_some_and(|first| !first.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_and_names_of_modules_are_taken_and_nothing_else() {
        let takes = |program: &str, modules: &[&str]| {
            Policy::default().warm(program, modules.iter().copied()).validate()
        };
        for program in ["python3", "python", "python3.11", "/srv/venv/bin/python", "./venv/bin/python3"] {
            takes(program, &["numpy", "os.path", "_x", "größe"]).expect(program);
        }
        for program in ["", "node", "/usr/bin/ruby", "python/", "python\0"] {
            let error = takes(program, &[]).expect_err(program).to_string();
            assert!(error.contains("names no Python"), "{error}");
        }
        for module in ["", "a b", "a.", ".a", "1a", "a;b", "a,b", "a\0"] {
            let error = takes("python3", &[module]).expect_err(module).to_string();
            assert!(error.starts_with("warm.python3") && error.contains("is no name"), "{error}");
        }
        let many = vec!["a"; 65];
        assert!(takes("python3", &many).expect_err("65").to_string().contains("at most 64"));
    }
}
