//! Rows as text for people: a paragraph for each section.

use crate::terminal::{style, table::Table};

/// One thing that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) section: Section,
    /// What it is. Rows of the same label and origin are shown together.
    pub(crate) label: String,
    /// A path, a host, a value.
    pub(crate) text: String,
    /// Where it comes from. Empty if nobody chose it.
    pub(crate) origin: String,
}

pub(super) fn row(section: Section, label: impl Into<String>, text: String, origin: &str) -> Row {
    Row { section, label: label.into(), text, origin: origin.to_owned() }
}

/// The parts of the text, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Start,
    Writable,
    Copies,
    Private,
    Readable,
    Own,
    Hidden,
    Reachable,
    Environment,
    Limits,
    Others,
}

impl Section {
    pub(crate) const ALL: [Self; 11] = [
        Self::Start,
        Self::Writable,
        Self::Copies,
        Self::Private,
        Self::Readable,
        Self::Own,
        Self::Hidden,
        Self::Reachable,
        Self::Environment,
        Self::Limits,
        Self::Others,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Start => "Policy",
            Self::Writable => "Writable: changes are real",
            Self::Copies => "Writable as a copy: the host keeps its files",
            Self::Private => "Private: empty at the start, gone at the end",
            Self::Readable => "Readable",
            Self::Own => "Made for the sandbox",
            Self::Hidden => "Hidden",
            Self::Reachable => "Reachable",
            Self::Environment => "Environment",
            Self::Limits => "Limits",
            Self::Others => "Other choices",
        }
    }
}

/// The rows as text: a paragraph for each section, and one entry for rows that differ in their text only.
pub(crate) fn page(rows: &[Row]) -> String {
    let table = Table::stdout();
    paragraphs(table, |section| {
        let entries = joined(rows.iter().filter(|row| row.section == section));
        entries.iter().map(|row| table.entry(&row.label, &row.text, &row.origin)).collect()
    })
}

/// What only one of two policies has: `-` the first, `+` the second. Empty if they come to the same.
pub(crate) fn difference(first: &[Row], second: &[Row]) -> String {
    let table = Table::stdout();
    let same = |one: &Row, other: &Row| {
        (one.section, &one.label, &one.text) == (other.section, &other.label, &other.text)
    };
    let only = |rows: &[Row], others: &[Row], section, sign, style| -> String {
        let only =
            rows.iter().filter(|row| row.section == section && !others.iter().any(|other| same(row, other)));
        let lines =
            joined(only.map(|row| Row { origin: String::new(), ..row.clone() }).collect::<Vec<_>>().iter());
        lines.iter().map(|row| table.line("", sign, style, &format!("{}: {}", row.label, row.text))).collect()
    };
    paragraphs(table, |section| {
        only(first, second, section, "-", style::REMOVED) + &only(second, first, section, "+", style::ADDED)
    })
}

/// Joins rows that differ in their text only.
fn joined<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<Row> {
    let mut entries: Vec<Row> = Vec::new();
    for row in rows {
        match entries.iter_mut().find(|entry| (&entry.label, &entry.origin) == (&row.label, &row.origin)) {
            Some(entry) => entry.text += &format!(", {}", row.text),
            None => entries.push(row.clone()),
        }
    }
    entries
}

/// Each section with a text, under its title.
fn paragraphs(table: Table, text: impl Fn(Section) -> String) -> String {
    let paragraph = |section: &Section| {
        let text = text(*section);
        let title = table.paint.paint(style::TITLE, section.title());
        (!text.is_empty()).then(|| format!("{title}\n{text}"))
    };
    Section::ALL.iter().filter_map(paragraph).collect::<Vec<_>>().join("\n")
}
