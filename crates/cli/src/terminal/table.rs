//! Tables and paragraphs on stdout: in colour and no wider than the terminal, or one line each where no
//! terminal is.

use std::io::{stderr, stdout};

use anstyle::Style;
use kennel::internal::{escape::harmless, terminal_size};
use textwrap::{Options, core::display_width, fill};

use crate::terminal::style::{self, Paint};

/// Width of the column of names.
const NAME: usize = 20;

/// Width of the column of states.
const STATE: usize = 9;

/// A text that would get less than this many columns moves to a line below.
const LEAST_TEXT: usize = 30;

/// Where that text starts then.
const BELOW: usize = 4;

/// A text whose lines are no wider than the terminal that stdout or stderr is. What continues a line is
/// indented by 2 more.
pub(crate) fn fit(text: &str) -> String {
    let width = terminal_size(stdout())
        .or_else(|_| terminal_size(stderr()))
        .ok()
        .map(|(_, columns)| usize::from(columns));
    let line = |line: &str| {
        let line = line.trim_end();
        let Some(width) = width.filter(|width| *width > 0 && display_width(line) > *width) else {
            return line.to_owned();
        };
        let indent = line.len() - line.trim_start().len() + 2;
        fill(line, Options::new(width).subsequent_indent(&" ".repeat(indent.min(width / 2))))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// A time in its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    let unit = units.iter().find(|(_, length)| seconds >= *length);
    unit.map_or_else(|| format!("{seconds}s"), |(unit, length)| format!("{}{unit}", seconds / length))
}

/// How tables are shown. Everything that it shows is escaped here.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) paint: Paint,
    /// Columns of the terminal; without one, lines have any length.
    width: Option<usize>,
}

impl Table {
    pub(crate) fn stdout() -> Self {
        let width =
            terminal_size(stdout()).ok().map(|(_, columns)| columns.into()).filter(|columns| *columns > 0);
        Self { paint: Paint::stdout(), width }
    }

    /// Columns of the terminal, if there is one.
    pub(crate) fn width(self) -> Option<usize> {
        self.width
    }

    /// A row: a name, a state in its style, and a text, which starts in one column of all rows.
    pub(crate) fn row(self, indent: &str, name: &str, style: Style, state: &str, text: &str) -> String {
        let column = self.detail_column(indent);
        let head = format!("{indent}{name:<NAME$} {} ", self.paint.paint(style, &format!("{state:<STATE$}")));
        if column == indent.len() + BELOW {
            return format!("{}\n{}", head.trim_end(), self.paragraph(&" ".repeat(column), column, text));
        }
        self.paragraph(&head, column, text)
    }

    /// The column in which the texts of rows start.
    pub(crate) fn detail_column(self, indent: &str) -> usize {
        let beside = indent.len() + NAME + STATE + 2;
        let is_narrow = self.width.is_some_and(|width| width < beside + LEAST_TEXT);
        if is_narrow { indent.len() + BELOW } else { beside }
    }

    /// A row of a list: a label, a text, and in fainter letters where it comes from.
    pub(crate) fn entry(self, label: &str, text: &str, origin: &str) -> String {
        let mut text = harmless(text);
        if !origin.is_empty() {
            text += &format!("  {}", self.paint.paint(style::FAINT, &format!("({})", harmless(origin))));
        }
        let (head, column) = (format!("  {label:<NAME$} "), 2 + NAME + 1);
        if display_width(label) > NAME || self.width.is_some_and(|width| width < column + LEAST_TEXT) {
            let column = 2 + BELOW;
            return format!("  {label}\n{}", self.wrapped(&" ".repeat(column), column, &text));
        }
        self.wrapped(&head, column, &text)
    }

    /// A line that starts with a word in a style, such as `hint:`. What does not fit continues below its
    /// text.
    pub(crate) fn line(self, indent: &str, word: &str, style: Style, text: &str) -> String {
        let head = format!("{indent}{} ", self.paint.paint(style, word));
        self.paragraph(&head, indent.len() + display_width(word) + 1, text)
    }

    /// `head`, which takes up `column` columns, and a text behind it; further lines start in that column.
    pub(crate) fn paragraph(self, head: &str, column: usize, text: &str) -> String {
        self.wrapped(head, column, &harmless(text))
    }

    /// [`paragraph`](Self::paragraph) of a harmless text that may have styles.
    fn wrapped(self, head: &str, column: usize, text: &str) -> String {
        let Some(width) = self.width.map(|width| width.saturating_sub(column).max(1)) else {
            return format!("{head}{text}\n");
        };
        let mut lines =
            fill(text, Options::new(width).break_words(true)).lines().map(str::to_owned).collect::<Vec<_>>();
        if lines.is_empty() {
            lines.push(String::new());
        }
        let indent = " ".repeat(column);
        format!("{head}{}\n", lines.join(&format!("\n{indent}")))
    }
}
