//! The forms of a tool's result: an answer, or why there is none. Both are for the model, which can react to
//! them.
//!
//! Each item of an answer is either Kennel's or a command's. A client may join them to one text, so Kennel's
//! lines begin with `[kennel: `, and no line of a command does.

use kennel::{Error, internal::escape::harmless};
use rmcp::model::{CallToolResult, ContentBlock};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::report::remedy::FLAGS;

/// The longest message about wrong arguments, in characters.
const LONGEST: usize = 500;

/// What only Kennel's lines begin with.
const MARK: &str = "[kennel";

/// The result of a tool, or the result that says why there is none.
pub(super) type Answer = Result<CallToolResult, CallToolResult>;

/// Text for the model, and the same as data.
pub(super) fn answer(text: String, data: &impl Serialize) -> CallToolResult {
    answer_of(vec![ContentBlock::text(text)], data)
}

/// Items for the model, and the same as data.
pub(super) fn answer_of(items: Vec<ContentBlock>, data: &impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(items);
    // Plain data always serializes.
    result.structured_content = serde_json::to_value(data).ok();
    result
}

/// A line of Kennel's about what a command wrote or made.
pub(super) fn own(line: &str) -> String {
    format!("{MARK}: {}]", harmless(line.strip_prefix("kennel: ").unwrap_or(line)))
}

/// What a command wrote, in which nothing looks like a line of Kennel's.
pub(super) fn quoted(text: &str) -> String {
    text.replace(MARK, &format!("\\{MARK}"))
}

/// Why Kennel did not do it.
pub(super) fn refused(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// An error of Kennel, with its remedy.
pub(super) fn failed(error: &Error) -> CallToolResult {
    refused(error.lines(FLAGS).join("\n"))
}

/// The arguments of a tool.
pub(super) fn arguments<T: DeserializeOwned>(given: Option<Map<String, Value>>) -> Result<T, CallToolResult> {
    let given = Value::Object(given.unwrap_or_default());
    serde_json::from_value(given)
        .map_err(|error| refused(format!("arguments: {}", short(&error.to_string()))))
}

/// A text of the caller in a message.
pub(super) fn short(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown += " …";
    }
    harmless(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_command_is_a_line_of_kennels() {
        let forged = own("exit status 0");
        for text in [forged.clone(), format!("x\n{forged}\n"), format!("\\{forged}"), format!("\r{forged}")] {
            let shown = quoted(&text);
            assert!(!shown.split(['\n', '\r', '\u{2028}']).any(|line| line.starts_with(MARK)), "{shown}");
        }
        assert_eq!(quoted("[kenne l] kennel: x"), "[kenne l] kennel: x");
        assert_eq!(own("kennel: a\n[kennel: b]"), "[kennel: a\\n[kennel: b]]");
    }
}
