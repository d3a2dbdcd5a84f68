//! Decides what a Seatbelt profile allows, from its text, with parsers that are not Kennel's: `lexpr` for the
//! S-expressions and `regex` for the expressions in them. It knows the rules of sandbox-exec(1) as far as
//! Kennel's profiles use them; what it does not know is an error, so no rule is passed over.

use std::path::Path;

use lexpr::Value;
use regex::Regex;

/// A profile.
#[derive(Debug)]
pub(crate) struct Profile(Vec<Rule>);

/// One rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) allows: bool,
    pub(crate) operations: Vec<String>,
    pub(crate) filters: Vec<Filter>,
}

/// What a rule is about.
#[derive(Debug)]
pub(crate) enum Filter {
    Literal(String),
    Subpath(String),
    Regex(Regex),
    Service(String),
    /// A parameter of the kernel, or the beginning of its name.
    Parameter(String),
    ParameterPrefix(String),
    /// An address, or any.
    Remote(Option<String>),
    /// Any address of this machine.
    Local,
    SameSandbox,
    /// A kind of file.
    Kind(String),
    All(Vec<Filter>),
    Not(Box<Filter>),
}

/// What a program attempts.
#[derive(Clone, Debug)]
pub(crate) enum Subject<'s> {
    /// The real path of a file, or of a Unix socket.
    File(&'s str),
    /// The same of a directory and of a symbolic link.
    Directory(&'s str),
    Link(&'s str),
    Parameter(&'s str),
    /// `host:port`, as a rule spells it.
    Address(&'s str),
    Service(&'s str),
    /// A process of another sandbox.
    Stranger,
    Nothing,
}

impl Profile {
    /// Parses a profile. Panics on anything that it does not know.
    pub(crate) fn parse(text: &str) -> Self {
        let mut parser = lexpr::Parser::from_str(text);
        let mut all = Vec::new();
        while let Some(value) = parser.next_value().expect("S-expressions") {
            all.push(value);
        }
        assert_eq!(all[0].to_string(), "(version 1)");
        assert_eq!(all[1].to_string(), "(deny default)");
        let imports = |value: &Value| {
            value.list_iter().and_then(|mut parts| parts.next()?.as_symbol()) == Some("import")
        };
        Self(all[2..].iter().filter(|value| !imports(value)).map(Rule::parse).collect())
    }

    /// The rules, in order.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Whether an operation is allowed: the last rule that matches decides, and without one it is refused.
    pub(crate) fn allows(&self, operation: &str, subject: &Subject<'_>) -> bool {
        let decides = |rule: &&Rule| rule.names(operation) && rule.is_about(subject);
        self.0.iter().rev().find(decides).is_some_and(|rule| rule.allows)
    }
}

impl Rule {
    fn parse(rule: &Value) -> Self {
        let mut parts = rule.list_iter().expect("a list");
        let allows = match parts.next().and_then(Value::as_symbol) {
            Some("allow") => true,
            Some("deny") => false,
            other => panic!("{other:?} is no rule"),
        };
        let (mut operations, mut filters) = (Vec::new(), Vec::new());
        for part in parts {
            match part.as_symbol() {
                Some(operation) => operations.push(operation.to_owned()),
                None => filters.push(Filter::parse(part)),
            }
        }
        assert!(!operations.is_empty(), "{rule}");
        Self { allows, operations, filters }
    }

    /// `file-read*` means each operation that begins with `file-read`.
    fn names(&self, operation: &str) -> bool {
        self.operations.iter().any(|own| match own.strip_suffix('*') {
            Some(start) => operation.starts_with(start),
            None => own == operation,
        })
    }

    fn is_about(&self, subject: &Subject<'_>) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| filter.matches(subject))
    }
}

impl Filter {
    fn parse(filter: &Value) -> Self {
        let parts: Vec<&Value> = filter.list_iter().expect("a filter").collect();
        let name = parts[0].as_symbol().expect("a name");
        let text = |at: usize| parts[at].as_str().or(parts[at].as_symbol()).expect("a text").to_owned();
        match (name, parts.len()) {
            ("literal", 2) => Self::Literal(text(1)),
            ("subpath", 2) => Self::Subpath(text(1)),
            ("regex", 2) => Self::Regex(Regex::new(&text(1)).expect("an expression")),
            ("global-name", 2) => Self::Service(text(1)),
            ("sysctl-name", 2) => Self::Parameter(text(1)),
            ("sysctl-name-prefix", 2) => Self::ParameterPrefix(text(1)),
            ("vnode-type", 2) => Self::Kind(text(1)),
            ("require-all", 2..) => Self::All(parts[1..].iter().map(|part| Self::parse(part)).collect()),
            ("require-not", 2) => Self::Not(Box::new(Self::parse(parts[1]))),
            ("remote", 2) if text(1) == "ip" => Self::Remote(None),
            ("local", 2) if text(1) == "ip" => Self::Local,
            ("target", 2) if text(1) == "same-sandbox" => Self::SameSandbox,
            ("remote", 3) if text(1) == "ip" => Self::Remote(Some(text(2))),
            _ => panic!("{filter} is unknown"),
        }
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        match (self, subject) {
            (Self::All(filters), _) => filters.iter().all(|filter| filter.matches(subject)),
            (Self::Not(filter), _) => !filter.matches(subject),
            (Self::Service(own), Subject::Service(name)) => own == name,
            (Self::Parameter(own), Subject::Parameter(name)) => own == name,
            (Self::ParameterPrefix(own), Subject::Parameter(name)) => name.starts_with(own),
            (Self::Remote(own), Subject::Address(address)) => own.as_ref().is_none_or(|own| own == address),
            (Self::Local, Subject::Address(_)) => true,
            (_, Subject::File(path)) => self.matches_file("REGULAR-FILE", path),
            (_, Subject::Directory(path)) => self.matches_file("DIRECTORY", path),
            (_, Subject::Link(path)) => self.matches_file("SYMLINK", path),
            _ => false,
        }
    }

    fn matches_file(&self, kind: &str, path: &str) -> bool {
        match self {
            Self::Literal(own) => own == path,
            Self::Subpath(own) => Path::new(path).starts_with(own),
            Self::Regex(own) => own.is_match(path),
            Self::Kind(own) => own == kind,
            _ => false,
        }
    }
}
