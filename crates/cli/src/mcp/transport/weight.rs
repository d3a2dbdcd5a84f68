//! What is known of a message before it is parsed: how much memory it takes, and whom an answer is for.

use rmcp::model::RequestId;

/// The heaviest message that is parsed. It is also the longest one.
pub(crate) const HEAVIEST: usize = 16 << 20;

/// What a value of a parsed message takes besides its text, in bytes.
const EACH: usize = 128;

/// The longest id that is answered, in bytes.
const LONGEST_ID: usize = 256;

/// Reads JSON byte by byte, and keeps nothing of it but the id of the outermost object.
#[derive(Debug, Default)]
pub(crate) struct Scale {
    weight: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The key or value of the outermost object that is being read.
    word: Vec<u8>,
    /// Whether `word` is the id.
    is_id: bool,
    id: Option<RequestId>,
}

impl Scale {
    /// What the message takes so far.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.weight = self.weight.saturating_add(bytes.len());
        bytes.iter().for_each(|byte| self.read(*byte));
    }

    /// The weight of the whole message, and its id if it has one.
    pub(crate) fn end(&mut self) -> (usize, Option<RequestId>) {
        let Self { weight, id, .. } = std::mem::take(self);
        (weight, id)
    }

    fn read(&mut self, byte: u8) {
        if self.in_string {
            self.keep(byte);
            self.in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return;
        }
        match byte {
            b'{' | b'[' => {
                self.value();
                self.depth += 1;
            }
            b'}' | b']' => {
                self.member();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => {
                self.value();
                self.member();
            }
            b':' => {
                self.value();
                self.is_id = self.depth == 1 && self.word == b"\"id\"";
                self.word.clear();
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                self.in_string = byte == b'"';
                self.keep(byte);
            }
        }
    }

    fn value(&mut self) {
        self.weight = self.weight.saturating_add(EACH);
    }

    fn keep(&mut self, byte: u8) {
        if self.depth != 1 {
            return;
        }
        if self.word.len() < LONGEST_ID {
            self.word.push(byte);
        } else if self.is_id {
            // An id is copied often.
            self.weight = usize::MAX;
        }
    }

    /// A member of an object ends here.
    fn member(&mut self) {
        if self.depth == 1 {
            if self.is_id {
                self.id = serde_json::from_slice(&self.word).ok();
            }
            self.is_id = false;
            self.word.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighed(message: &str) -> (usize, Option<RequestId>) {
        let (mut whole, mut bytewise) = (Scale::default(), Scale::default());
        whole.add(message.as_bytes());
        message.as_bytes().chunks(1).for_each(|byte| bytewise.add(byte));
        let weighed = whole.end();
        assert_eq!(weighed, bytewise.end());
        weighed
    }

    #[test]
    fn the_id_is_found_wherever_it_is() {
        let of = |message: &str| serde_json::to_value(weighed(message).1).expect("JSON");
        for (message, id) in [
            (r#"{"id":7,"method":"x"}"#, "7"),
            (r#"{"method":"x","params":{"id":1,"a":[{"id":2}]},"id" : "a\"}b" }"#, r#""a\"}b""#),
            (r#"{"id":-5}"#, "-5"),
            (r#"{"a":"\"id\":3","b":"\\","id":0}"#, "0"),
        ] {
            assert_eq!(of(message).to_string(), id, "{message}");
        }
        for message in [
            "",
            "[]",
            "{}",
            r#""id""#,
            r#"{"id":{}}"#,
            r#"{"id":null}"#,
            r#"{"a":{"id":1}}"#,
            r#"[{"id":1}]"#,
            r#"{"id""#,
            "}}}{",
        ] {
            assert!(of(message).is_null(), "{message}");
        }
    }

    #[test]
    fn text_weighs_what_it_is_and_each_value_more() {
        assert_eq!(weighed("12345").0, 5);
        assert_eq!(weighed(r#""[{,:\"[[""#).0, 10, "text is no value");
        assert_eq!(weighed("[1,2,3]").0, 7 + 3 * EACH);
        assert_eq!(weighed(r#"{"a":1}"#).0, 7 + 2 * EACH);
        let id = format!(r#"{{"id":"{}"}}"#, "x".repeat(300));
        assert!(weighed(&id).0 > HEAVIEST && weighed(&id).1.is_none());
    }

    #[test]
    fn one_message_leaves_nothing_for_the_next() {
        let mut scale = Scale::default();
        scale.add(br#"{"id":1,"a":[{"""#);
        scale.end();
        scale.add(br#"{"id":2}"#);
        assert_eq!(serde_json::to_value(scale.end().1).expect("JSON"), 2);
    }
}
