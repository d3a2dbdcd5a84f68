//! Tables and paragraphs on stdout: in colour and no wider than the terminal, or one line each where no terminal is.

use std::io::stdout;

use anstyle::Style;
use kennel::Terminal;
use textwrap::{Options, core::display_width, fill};

use crate::{escape::harmless, style::Paint};

/// Width of the column of names.
const NAME: usize = 20;

/// Width of the column of states.
const STATE: usize = 9;

/// A text that would get less than this many columns moves to a line below.
const LEAST_TEXT: usize = 30;

/// Where that text starts then.
const BELOW: usize = 4;

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
            Terminal::size(stdout()).ok().map(|(_, columns)| columns.into()).filter(|columns| *columns > 0);
        Self { paint: Paint::stdout(), width }
    }

    /// Columns of the terminal, if there is one.
    pub(crate) fn width(self) -> Option<usize> {
        self.width
    }

    /// A row: a name, a state in its style, and a text, which starts in one column of all rows.
    pub(crate) fn row(self, indent: &str, name: &str, (style, state): (Style, &str), text: &str) -> String {
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

    /// A line that starts with a word in a style, such as `hint:`. What does not fit continues below its text.
    pub(crate) fn line(self, indent: &str, word: &str, style: Style, text: &str) -> String {
        let head = format!("{indent}{} ", self.paint.paint(style, word));
        self.paragraph(&head, indent.len() + display_width(word) + 1, text)
    }

    /// `head`, which takes up `column` columns, and a text behind it; further lines start in that column.
    pub(crate) fn paragraph(self, head: &str, column: usize, text: &str) -> String {
        let text = harmless(text);
        let Some(width) = self.width.map(|width| width.saturating_sub(column).max(1)) else {
            return format!("{head}{text}\n");
        };
        let mut lines =
            fill(&text, Options::new(width).break_words(true)).lines().map(str::to_owned).collect::<Vec<_>>();
        if lines.is_empty() {
            lines.push(String::new());
        }
        let indent = " ".repeat(column);
        format!("{head}{}\n", lines.join(&format!("\n{indent}")))
    }
}
