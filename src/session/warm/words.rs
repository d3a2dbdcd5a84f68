//! What a command line asks of Python, and whether an interpreter that runs already can do it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::launch::request::RequestBuf;

/// What Python runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `-c TEXT`
    Text,
    /// `-m MODULE`
    Module,
    /// A script.
    Script,
    /// Standard input: `-`, or nothing.
    Input,
}

impl Kind {
    /// The letter for it in messages.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Self::Text => b'c',
            Self::Module => b'm',
            Self::Script => b's',
            Self::Input => b'-',
        }
    }
}

/// A command line that a waiting interpreter understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    /// Which argument has the text, the module or the script; the number of arguments if there is none.
    pub(crate) operand: usize,
    /// How many bytes of that argument come before it: those of `-c` in `-cTEXT`.
    pub(crate) skip: usize,
    /// Its options: letters of `uBq`.
    pub(crate) flags: Vec<u8>,
}

impl Form {
    /// The form of these arguments, with the name of the program.
    ///
    /// # Errors
    /// Why the program has to be executed.
    pub(crate) fn of(arguments: &[&[u8]]) -> Result<Self, &'static str> {
        const OTHER: &str = "an option of Python acts at its start";
        let mut form = Self { kind: Kind::Input, operand: 1, skip: 0, flags: Vec::new() };
        while let Some(argument) = arguments.get(form.operand) {
            let Some(letters) = argument.strip_prefix(b"-") else {
                return Ok(Self { kind: Kind::Script, ..form });
            };
            if letters.is_empty() {
                return Ok(form);
            }
            for (index, letter) in letters.iter().enumerate() {
                form.kind = match letter {
                    b'u' | b'B' | b'q' => {
                        form.flags.push(*letter);
                        continue;
                    }
                    b'c' => Kind::Text,
                    b'm' => Kind::Module,
                    _ => return Err(OTHER),
                };
                let is_attached = index + 1 < letters.len();
                match is_attached {
                    true => form.skip = index + 2,
                    false => form.operand += 1,
                }
                let text = arguments.get(form.operand).ok_or("an option has no value")?;
                return std::str::from_utf8(text).map(|_| form).map_err(|_| "its text is not UTF-8");
            }
            form.operand += 1;
        }
        Ok(form)
    }
}

/// Variables that Python, its loader, its libraries for numbers or `site` read while they start.
const AT_START: &[&str] = &[
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "LOCPATH",
    "MALLOC_",
    "GLIBC_",
    "HOME=",
    "TZDIR=",
    "OMP_",
    "KMP_",
    "OPENBLAS_",
    "GOTO_",
    "MKL_",
    "BLIS_",
    "NUMEXPR_",
    "NPY_",
    "NUMPY_",
    "CUDA_",
    "VECLIB_",
];

/// The variable in which two environments differ in a way that only a start of its own can answer.
pub(crate) fn difference_at_start<'e>(
    of_session: &BTreeMap<OsString, OsString>,
    of_command: impl Iterator<Item = &'e CStr>,
) -> Option<String> {
    let acts = |variable: &[u8]| AT_START.iter().any(|start| variable.starts_with(start.as_bytes()));
    let joined = |(name, value): (&OsString, &OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let mut session: BTreeSet<Vec<u8>> =
        of_session.iter().map(joined).filter(|variable| acts(variable)).collect();
    let new = of_command
        .map(CStr::to_bytes)
        .filter(|variable| acts(variable))
        .find(|variable| !session.remove(*variable))
        .map(<[u8]>::to_vec);
    let variable = new.or_else(|| session.pop_first())?;
    let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Whether a program may be this interpreter, by the letters of its name: `python3.11` and `python` may be
/// `python3`. The interpreter itself decides.
pub(crate) fn may_be(program: &str, request: &RequestBuf) -> bool {
    fn stem(name: &[u8]) -> &[u8] {
        let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let end = name.iter().rposition(|byte| !(byte.is_ascii_digit() || *byte == b'.'));
        name.get(..end.map_or(0, |end| end + 1)).unwrap_or_default()
    }
    request.programs().next().is_some_and(|path| stem(path.to_bytes()) == stem(program.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(arguments: &[&str]) -> Result<(Kind, usize, String), &'static str> {
        let arguments: Vec<&[u8]> =
            std::iter::once("python3").chain(arguments.iter().copied()).map(str::as_bytes).collect();
        let form = Form::of(&arguments)?;
        Ok((form.kind, form.operand, String::from_utf8(form.flags).expect("letters")))
    }

    #[test]
    fn forms_that_python_has() {
        let of = |arguments: &[&str]| form(arguments).expect("a form");
        assert_eq!(of(&["-c", "pass", "-O"]), (Kind::Text, 2, String::new()));
        assert_eq!(of(&["-uBcpass"]), (Kind::Text, 1, "uB".to_owned()));
        assert_eq!(Form::of(&[b"python3", b"-uBc-c"]).expect("a form").skip, 4);
        assert_eq!(of(&["-u", "-B", "-q", "-c", "pass"]), (Kind::Text, 5, "uBq".to_owned()));
        assert_eq!(of(&["-m", "a.b", "-c"]), (Kind::Module, 2, String::new()));
        assert_eq!(of(&["-Bm", "a"]), (Kind::Module, 2, "B".to_owned()));
        assert_eq!(of(&["x.py", "-O"]), (Kind::Script, 1, String::new()));
        assert_eq!(of(&["-u", "x.py"]), (Kind::Script, 2, "u".to_owned()));
        assert_eq!(of(&["-", "x"]), (Kind::Input, 1, String::new()));
        assert_eq!(of(&[]), (Kind::Input, 1, String::new()));
        assert_eq!(of(&["-q"]), (Kind::Input, 2, "q".to_owned()));
    }

    #[test]
    fn what_acts_at_the_start_is_executed() {
        for arguments in [
            &["-O", "-c", ""][..],
            &["-uO", "x"],
            &["-I", "x"],
            &["-W", "error", "x"],
            &["-X", "utf8", "x"],
            &["-V"],
            &["--version"],
            &["--", "x"],
            &["-h"],
            &["-c"],
            &["-m"],
            &["-Bc"],
        ] {
            form(arguments).expect_err(&format!("{arguments:?}"));
        }
        Form::of(&[b"python3", b"-c", b"print('\xff')"]).expect_err("no UTF-8");
    }

    #[test]
    fn variables_that_act_at_the_start_are_compared() {
        let session: BTreeMap<OsString, OsString> =
            [("HOME", "/home/me"), ("LANG", "C.UTF-8"), ("X", "1")].map(|(n, v)| (n.into(), v.into())).into();
        let differs = |session, command: &[&CStr]| difference_at_start(session, command.iter().copied());
        assert_eq!(differs(&session, &[c"LANG=C.UTF-8", c"HOME=/home/me", c"Y=2", c"PATH=/bin"]), None);
        for (command, name) in [
            (&[c"HOME=/home/me", c"LANG=C"][..], "LANG"),
            (&[c"HOME=/home/me", c"LANG=C.UTF-8", c"PYTHONHASHSEED=0"], "PYTHONHASHSEED"),
            (&[c"HOME=/home/me", c"LANG=C.UTF-8", c"OMP_NUM_THREADS=1"], "OMP_NUM_THREADS"),
            (&[c"HOME=/home/me", c"LANG=C.UTF-8", c"LD_PRELOAD=/x"], "LD_PRELOAD"),
            (&[c"HOME=/home/me", c"LANG=C.UTF-8", c"LC_ALL=C"], "LC_ALL"),
            (&[c"LANG=C.UTF-8"], "HOME"),
            (&[], "HOME"),
        ] {
            assert_eq!(differs(&session, command).as_deref(), Some(name));
        }
    }
}
