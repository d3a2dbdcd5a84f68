//! Code and what runs it. The source goes in through a pipe; each interpreter reads all of it before the first line of it
//! runs, so that nothing of it is left to be read as input.

use entelix_core::sandbox::{CodeSpec, CommandOutput, SandboxLanguage};

use crate::adapters::entelix;
use crate::adapters::entelix::{KennelSandbox, told};
use crate::report::error::Error;

/// A command that runs what it is given on stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// The program that must be there.
    name: &'static str,
    command: &'static [&'static str],
}

const fn interpreter(name: &'static str, command: &'static [&'static str]) -> Interpreter {
    Interpreter { name, command }
}

/// `source` reads a pipe to its end first, which `bash -s` does not.
const BASH: Interpreter = interpreter("bash", &["bash", "-c", ". /dev/stdin", "bash"]);
const PYTHON: Interpreter = interpreter("python3", &["python3", "-"]);
const NODE: Interpreter = interpreter("node", &["node", "-"]);
/// From 22.6 to 23.5 types are stripped only on demand.
const NODE_STRIPPING: Interpreter =
    interpreter("node", &["node", "--no-warnings", "--experimental-strip-types", "-"]);

/// What runs TypeScript where node is too old, the best first.
const OTHERS: [Interpreter; 4] = [
    // Of what comes on stdin it strips no types. /dev/shm is memory, and of this command alone.
    interpreter(
        "tsx",
        &["/bin/sh", "-c", "/bin/cat > /dev/shm/code.ts && exec tsx /dev/shm/code.ts < /dev/null"],
    ),
    // It knows no `-`; its own choice of modules fits no TypeScript of today.
    interpreter(
        "ts-node",
        &["ts-node", "--transpileOnly", "--skipProject", "--compilerOptions", TS_NODE_OPTIONS],
    ),
    interpreter("deno", &["deno", "run", "--quiet", "--allow-all", "--ext=ts", "-"]),
    interpreter("bun", &["bun", "run", "-"]),
];

const TS_NODE_OPTIONS: &str = r#"{"module":"commonjs","moduleResolution":"node10","target":"es2022"}"#;

impl KennelSandbox {
    pub(crate) async fn interpret(&self, spec: CodeSpec) -> entelix_core::Result<CommandOutput> {
        let CodeSpec { language, source, timeout } = spec;
        let interpreter = match language {
            SandboxLanguage::Bash => BASH,
            SandboxLanguage::Python => PYTHON,
            SandboxLanguage::JavaScript => NODE,
            SandboxLanguage::TypeScript => *self.typescript.get_or_try_init(|| self.for_typescript()).await?,
            other => {
                return Err(entelix_core::Error::invalid_request(format!(
                    "{other:?}: no such language here"
                )));
            }
        };
        let [program, arguments @ ..] = interpreter.command else { return Err(unheard_of(language)) };
        let mut command = self.command(program, timeout);
        command.args(arguments);
        match command.output_with_input(source.as_bytes()).await {
            Ok(output) => Ok(told(output)),
            Err(Error::NotFound { program }) => {
                let reason = format!("{language:?} needs {program}, which is not in the sandbox");
                Err(entelix_core::Error::invalid_request(reason))
            }
            Err(error) => Err(entelix::failed(error)),
        }
    }

    /// The first of those that run TypeScript which is there.
    async fn for_typescript(&self) -> entelix_core::Result<Interpreter> {
        let version = self.answer(NODE.name).await?;
        if let Some(node) = version.as_deref().and_then(stripping) {
            return Ok(node);
        }
        for other in OTHERS {
            if self.answer(other.name).await?.is_some() {
                return Ok(other);
            }
        }
        let node = version.map_or("which is not in the sandbox".to_owned(), |is| format!("which is {is}"));
        let reason = format!(
            "TypeScript needs node 22.6 or later, {node}, or one of tsx, ts-node, deno, bun, which are not"
        );
        Err(entelix_core::Error::invalid_request(reason))
    }

    /// What a program says of its version; `None` where it is not there.
    async fn answer(&self, program: &str) -> entelix_core::Result<Option<String>> {
        match self.command(program, None).arg("--version").output().await {
            Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())),
            Err(Error::NotFound { .. } | Error::NotExecutable { .. }) => Ok(None),
            Err(error) => Err(entelix::failed(error)),
        }
    }
}

fn unheard_of(language: SandboxLanguage) -> entelix_core::Error {
    entelix_core::Error::invalid_request(format!("{language:?}: no such language here"))
}

/// How a node of that version is told to strip types, if it can.
fn stripping(version: &str) -> Option<Interpreter> {
    let mut numbers =
        version.trim_start_matches('v').split('.').map_while(|number| number.parse::<u32>().ok());
    match (numbers.next()?, numbers.next()?) {
        (22, 6..) | (23, ..6) => Some(NODE_STRIPPING),
        (23.., _) => Some(NODE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_told_what_its_version_needs() {
        for (version, expected) in [
            ("v20.20.2", None),
            ("v22.5.1", None),
            ("v22.6.0", Some(NODE_STRIPPING)),
            ("v22.18.0", Some(NODE_STRIPPING)),
            ("v23.5.0", Some(NODE_STRIPPING)),
            ("v23.6.0", Some(NODE)),
            ("v24.0.0-rc.1", Some(NODE)),
            ("v100.0.0", Some(NODE)),
            ("", None),
            ("v22", None),
            ("node", None),
        ] {
            assert_eq!(stripping(version), expected, "{version}");
        }
    }
}
