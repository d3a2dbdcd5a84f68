//! Reads configuration files of git: git-config(1), "Syntax". It follows no include.

use std::iter;

/// One variable, with the section that it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variable {
    /// The name of the section, in lower case.
    pub(crate) section: String,
    /// The rest of the section's name, as in `[remote "origin"]`.
    pub(crate) subsection: Option<Vec<u8>>,
    /// In lower case.
    pub(crate) key: String,
    /// `None` for a key alone, which means "true".
    pub(crate) value: Option<Vec<u8>>,
}

impl Variable {
    /// Whether it is `section.key`, without a subsection.
    pub(crate) fn is(&self, section: &str, key: &str) -> bool {
        self.section == section && self.subsection.is_none() && self.key == key
    }

    /// The lines of a file that sets only this variable. Both names are plain text, and the rest is quoted.
    pub(crate) fn write_to(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(format!("[{}", self.section).as_bytes());
        if let Some(subsection) = &self.subsection {
            text.push(b' ');
            quote(subsection, text);
        }
        text.extend_from_slice(format!("]\n\t{}", self.key).as_bytes());
        if let Some(value) = &self.value {
            text.extend_from_slice(b" = ");
            quote(value, text);
        }
        text.push(b'\n');
    }
}

fn quote(value: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    for byte in value {
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            byte => text.push(*byte),
        }
    }
    text.push(b'"');
}

/// The variables of a file, in order. At a mistake in the file they end, because git reads no further either.
pub(crate) fn variables(text: &[u8]) -> impl Iterator<Item = Variable> {
    let mut reader =
        Reader { rest: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text), at: Variable::default() };
    iter::from_fn(move || reader.next_variable())
}

struct Reader<'t> {
    rest: &'t [u8],
    /// The section that was begun last.
    at: Variable,
}

impl Reader<'_> {
    /// The next byte. A line that ends as on Windows ends as on Unix.
    fn take(&mut self) -> Option<u8> {
        if self.rest.starts_with(b"\r\n") {
            self.rest = self.rest.get(1..)?;
        }
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> String {
        let end = self.rest.iter().position(|byte| !belongs(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        String::from_utf8_lossy(taken).to_ascii_lowercase()
    }

    fn next_variable(&mut self) -> Option<Variable> {
        loop {
            match self.rest.first()? {
                byte if byte.is_ascii_whitespace() => drop(self.take()),
                b'#' | b';' => drop(self.take_while(|byte| byte != b'\n')),
                b'[' => self.section()?,
                byte if byte.is_ascii_alphabetic() && !self.at.section.is_empty() => return self.variable(),
                _ => return None,
            }
        }
    }

    fn section(&mut self) -> Option<()> {
        self.take();
        let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
        self.take_while(|byte| matches!(byte, b' ' | b'\t'));
        let (section, rest) = name.split_once('.').map_or((&*name, None), |(name, rest)| (name, Some(rest)));
        let subsection = match self.take()? {
            b']' => rest.map(|rest| rest.as_bytes().to_owned()),
            b'"' => Some(self.quoted_subsection()?),
            _ => return None,
        };
        self.at = Variable { section: section.to_owned(), subsection, ..Variable::default() };
        (!section.is_empty()).then_some(())
    }

    /// The rest of `[section "subsection"]`, after the first quote.
    fn quoted_subsection(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            match self.take()? {
                b'\n' => return None,
                b'"' => return (self.take()? == b']').then_some(name),
                b'\\' => name.push(self.take().filter(|byte| *byte != b'\n')?),
                byte => name.push(byte),
            }
        }
    }

    fn variable(&mut self) -> Option<Variable> {
        let key = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        self.take_while(|byte| matches!(byte, b' ' | b'\t'));
        let value = match self.rest.first() {
            Some(b'=') => {
                self.take();
                Some(self.value()?)
            }
            None | Some(b'\n' | b'\r' | b'#' | b';') => None,
            Some(_) => return None,
        };
        Some(Variable { key, value, ..self.at.clone() })
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let (mut value, mut end, mut is_quoted) = (Vec::new(), 0, false);
        loop {
            match self.take() {
                Some(b'\n') | None if is_quoted => return None,
                Some(b'\n') | None => break,
                Some(b'"') => (is_quoted, end) = (!is_quoted, value.len()),
                Some(b'#' | b';') if !is_quoted => {
                    self.take_while(|byte| byte != b'\n');
                    break;
                }
                Some(b'\\') => {
                    match self.take()? {
                        b'\n' => continue,
                        b't' => value.push(b'\t'),
                        b'b' => value.push(8),
                        b'n' => value.push(b'\n'),
                        byte @ (b'\\' | b'"') => value.push(byte),
                        _ => return None,
                    }
                    end = value.len();
                }
                Some(byte) if byte.is_ascii_whitespace() && !is_quoted => {
                    // White space before the value, and after it, does not belong to it.
                    if !value.is_empty() {
                        value.push(byte);
                    }
                }
                Some(byte) => {
                    value.push(byte);
                    end = value.len();
                }
            }
        }
        value.truncate(end);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable_lines(text: &str) -> Vec<String> {
        let line = |it: Variable| {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
            let subsection = it.subsection.map(|sub| format!("<{}>", text(sub))).unwrap_or_default();
            format!("{}{subsection}.{}={}", it.section, it.key, it.value.map_or("(true)".into(), text))
        };
        variables(text.as_bytes()).map(line).collect()
    }

    #[test]
    fn files_are_read_as_git_reads_them() {
        for (text, expected) in [
            ("[core]\n\tbare = false # no\n\tX\n", vec!["core.bare=false", "core.x=(true)"]),
            (
                "[a]x=1;c\r\n y = 2 \r\n[b \"S \\\" s\"] z = \" q \" r \n",
                vec!["a.x=1", "a.y=2", "b<S \" s>.z= q  r"],
            ),
            (
                "[Alias.St]\nx = \"a\\\n[user]\"\\\n  b\ny = \\\\\n",
                vec!["alias<st>.x=a[user]  b", "alias<st>.y=\\"],
            ),
            ("# \\\n[a]\nx = 1 # \\\ny = 2", vec!["a.x=1", "a.y=2"]),
            ("\u{feff}[a]\nx =\n", vec!["a.x="]),
            // Mistakes.
            ("x = 1\n[a]\ny = 1", vec![]),
            ("[a]\nx = 1\n[a b]\ny = 1", vec!["a.x=1"]),
            ("[a]\nx = \"1\ny = 1", vec![]),
            ("[a \"b\nc\"]\ny = 1", vec![]),
            ("[a]\nx = \\q\ny = 1", vec![]),
        ] {
            assert_eq!(variable_lines(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for text in
            ["[a]\nx", "[a \"b\\\"\\\\ c\"]\nx = \" a;b\\n\\t\\\\\\\"#c \"", "[a.b]\nx = é\n", "[a]\nx ="]
        {
            let variable = variables(text.as_bytes()).next().expect("a variable");
            let mut written = Vec::new();
            variable.write_to(&mut written);
            let again: Vec<Variable> = variables(&written).collect();
            assert_eq!(again, [variable], "{text:?}");
        }
    }
}
