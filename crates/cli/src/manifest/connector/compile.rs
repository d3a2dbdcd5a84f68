//! `kennel connector compile`: compiles programs into the cache.

use std::{fs, path::Path, process::ExitCode};

use kennel::{
    Error, Size,
    connector::{ConnectorError, Runtime},
};

use super::{
    input,
    runtime::{cache_directory, escaped_path, failed},
};
use crate::{
    args::manifest::Compile,
    process::exit_status::FAILED,
    report::{self, remedy::FLAGS},
};

/// Runs `kennel connector compile`.
pub(super) fn compile(compile: &Compile) -> Result<ExitCode, Error> {
    let runtime = match Runtime::builder().at_once(1).cache(cache_directory()?).build() {
        Ok(runtime) => runtime,
        Err(error) => return Ok(failed(&error)),
    };
    let mut code = ExitCode::SUCCESS;
    for file in &compile.files {
        match program_line(&runtime, file) {
            Ok(line) => report::print(line.as_bytes())?,
            Err(error) => {
                let lines = error.lines(FLAGS).into_iter().enumerate();
                let named = |(number, line): (usize, String)| match line.strip_prefix("kennel: ") {
                    Some(rest) if number == 0 => format!("kennel: {}: {rest}", escaped_path(file)),
                    _ => line,
                };
                report::error_lines(&lines.map(named).collect::<Vec<_>>());
                code = FAILED.into();
            }
        }
    }
    Ok(code)
}

/// The line about one program.
fn program_line(runtime: &Runtime, file: &Path) -> Result<String, ConnectorError> {
    let path = runtime.precompile(&input::program(file)?)?;
    let size = fs::metadata(&path).map(|metadata| metadata.len());
    let size =
        size.map_err(|source| Error::File { what: "look at", path: path.clone(), source, remedy: None })?;
    let size = Size::from_bytes(size.next_multiple_of(1 << 10));
    Ok(format!("{}: {size}, {}\n", escaped_path(file), escaped_path(&path)))
}
