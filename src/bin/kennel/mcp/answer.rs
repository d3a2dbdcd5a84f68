//! The forms of a tool's result: an answer, or why there is none. Both are for the model, which can react to them.

use kennel::Error;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::escape::harmless;

/// The longest message about wrong arguments, in characters.
const LONGEST: usize = 500;

/// The result of a tool, or the result that says why there is none.
pub(super) type Answer = Result<CallToolResult, CallToolResult>;

/// Text for the model, and the same as data.
pub(super) fn answer(text: String, data: &impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    // Plain data always serializes.
    result.structured_content = serde_json::to_value(data).ok();
    result
}

/// Why Kennel did not do it.
pub(super) fn refused(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

/// An error of Kennel, with its remedy.
pub(super) fn failed(error: &Error) -> CallToolResult {
    refused(error.lines().join("\n"))
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
