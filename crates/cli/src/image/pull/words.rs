//! What a registry says about a refusal, in one line. It is anybody's text: who prints it escapes it.

use std::io::Read;

use reqwest::{blocking::Response, header::CONTENT_TYPE};
use serde_json::Value;

/// Bytes of an answer that are looked at.
const MOST_BYTES: u64 = 64 << 10;

/// Characters that are shown.
const MOST_CHARACTERS: usize = 300;

/// The words of an answer; empty if it has none for people.
pub(super) fn of(response: Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_text = kind.is_some_and(|kind| kind.starts_with("text/plain"));
    let mut body = Vec::new();
    // What came counts.
    let _ = response.take(MOST_BYTES).read_to_end(&mut body);
    let text = String::from_utf8_lossy(&body);
    let words = match serde_json::from_str::<Value>(&text) {
        Ok(answer) => of_json(&answer),
        Err(_) if is_text => text.into_owned(),
        Err(_) => String::new(),
    };
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The messages of the errors that OCI defines, or the fields that token servers have instead.
fn of_json(answer: &Value) -> String {
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty()).map(str::to_owned)
    };
    let error = |error: &Value| text(error, "message").or_else(|| text(error, "code"));
    let errors = answer.get("errors").and_then(Value::as_array).into_iter().flatten();
    let mut said: Vec<String> = errors.filter_map(error).collect();
    said.dedup();
    if said.is_empty() {
        let fields = ["error_description", "details", "message", "error"];
        said.extend(fields.iter().find_map(|key| text(answer, key)));
    }
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_registries_and_token_servers_are_read() {
        for (text, expected) in [
            (r#"{"errors":[{"code":"DENIED","message":"no access"}]}"#, "no access"),
            (r#"{"errors":[{"code":"TOOMANYREQUESTS","message":" "}]}"#, "TOOMANYREQUESTS"),
            (r#"{"errors":[{"message":"a"},{"message":"a"},{"message":"b"},3]}"#, "a; b"),
            (r#"{"details":"incorrect username or password"}"#, "incorrect username or password"),
            (r#"{"error":"invalid","error_description":"bad token"}"#, "bad token"),
            (r#"{"errors":7}"#, ""),
            ("[]", ""),
        ] {
            assert_eq!(of_json(&serde_json::from_str(text).expect("JSON")), expected, "{text}");
        }
    }
}
