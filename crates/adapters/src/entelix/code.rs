//! Runs code with an interpreter. The source goes in through a pipe. Each interpreter reads all of it before
//! it runs the first line, so the code cannot read its own source as input.

use entelix_core::sandbox::{CodeSpec, CommandOutput, SandboxLanguage};
use kennel::Error;

use crate::entelix;
use crate::entelix::{KennelSandbox, command_output};

/// A command that runs the code on its stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// The program that the sandbox must have.
    name: &'static str,
    command: &'static [&'static str],
}

const fn interpreter(name: &'static str, command: &'static [&'static str]) -> Interpreter {
    Interpreter { name, command }
}

/// `.` reads the pipe to its end before it runs anything; `bash -s` does not.
const BASH: Interpreter = interpreter("bash", &["bash", "-c", ". /dev/stdin", "bash"]);
const PYTHON: Interpreter = interpreter("python3", &["python3", "-"]);
const NODE: Interpreter = interpreter("node", &["node", "-"]);
/// From 22.6 to 23.5, node strips types only with this flag.
const NODE_STRIPPING: Interpreter =
    interpreter("node", &["node", "--no-warnings", "--experimental-strip-types", "-"]);

/// Interpreters for TypeScript if node is too old, best first.
const OTHERS: [Interpreter; 4] = [
    // tsx strips no types from code on stdin. /dev/shm is in memory and private to this command.
    interpreter(
        "tsx",
        &["/bin/sh", "-c", "/bin/cat > /dev/shm/code.ts && exec tsx /dev/shm/code.ts < /dev/null"],
    ),
    // ts-node does not accept `-`, and its default module settings do not fit current TypeScript.
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
                    "{other:?}: this language is not supported"
                )));
            }
        };
        let [program, arguments @ ..] = interpreter.command else { return Err(unheard_of(language)) };
        let mut command = self.command(program, timeout);
        command.args(arguments);
        match command.output_with_input(source.as_bytes()).await {
            Ok(output) => Ok(command_output(output)),
            Err(Error::NotFound { program }) => {
                let reason = format!("{language:?} needs {program}, which is not in the sandbox");
                Err(entelix_core::Error::invalid_request(reason))
            }
            Err(error) => Err(entelix::failed(error)),
        }
    }

    /// The first interpreter for TypeScript that the sandbox has.
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
            "TypeScript needs node 22.6 or later, {node}, or one of tsx, ts-node, deno, bun; \
             none of these is in the sandbox"
        );
        Err(entelix_core::Error::invalid_request(reason))
    }

    /// The output of `program --version`; `None` if the sandbox does not have the program.
    async fn answer(&self, program: &str) -> entelix_core::Result<Option<String>> {
        match self.command(program, None).arg("--version").output().await {
            Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())),
            Err(Error::NotFound { .. } | Error::NoInterpreter { .. } | Error::NotExecutable { .. }) => {
                Ok(None)
            }
            Err(error) => Err(entelix::failed(error)),
        }
    }
}

fn unheard_of(language: SandboxLanguage) -> entelix_core::Error {
    entelix_core::Error::invalid_request(format!("{language:?}: this language is not supported"))
}

/// The node command that strips types in this version of node, if it can.
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
