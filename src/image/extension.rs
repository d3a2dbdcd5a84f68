//! What extension headers of PAX and GNU say about the entry that follows them.

use std::io;

use crate::image::fault::Fault;

/// A time, as files have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileTime {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// What extension headers say about the entry after them.
#[derive(Default)]
pub(crate) struct Extension {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) target: Option<Vec<u8>>,
    /// PAX records in their order. The last of a key counts.
    pub(crate) records: Vec<Attribute>,
    /// Whether there was any.
    pub(crate) any: bool,
}

impl Extension {
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        let record = self.records.iter().rfind(|record| record.name == key.as_bytes())?;
        // An empty value takes back what was said.
        Some(record.value.as_slice()).filter(|value| !value.is_empty())
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, Fault> {
        let parse =
            |value: &[u8]| decimal(value).ok_or(Fault::Archive("a number in a PAX record is no number"));
        self.get(key).map(parse).transpose()
    }
}

/// The records of a PAX header: `LENGTH KEY=VALUE\n` each.
pub(crate) fn records(mut data: &[u8]) -> Result<Vec<Attribute>, Fault> {
    const MALFORMED: Fault = Fault::Archive("a PAX record is malformed");
    let mut records = Vec::new();
    while !data.is_empty() {
        let space = data.iter().position(|byte| *byte == b' ').ok_or(MALFORMED)?;
        let length = data.get(..space).and_then(decimal).and_then(|length| usize::try_from(length).ok());
        let (record, rest) = length.and_then(|length| data.split_at_checked(length)).ok_or(MALFORMED)?;
        let record =
            record.get(space + 1..).and_then(|record| record.strip_suffix(b"\n")).ok_or(MALFORMED)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
        let (name, value) = record.split_at(equals);
        records.push(Attribute { name: name.to_vec(), value: value.get(1..).unwrap_or_default().to_vec() });
        data = rest;
    }
    Ok(records)
}

/// Seconds with a fraction, perhaps before 1970.
pub(crate) fn time(text: &[u8]) -> Option<FileTime> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut digits = parts.next().unwrap_or_default().to_vec();
    digits.resize(9, b'0');
    let nanoseconds = u32::try_from(decimal(&digits)?).ok()?;
    Some(match (is_negative, nanoseconds) {
        (false, _) => FileTime { seconds, nanoseconds },
        (true, 0) => FileTime { seconds: -seconds, nanoseconds },
        (true, _) => FileTime { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// A number of a header. A blank field is 0.
pub(crate) fn number(parsed: io::Result<u64>, field: &[u8]) -> Result<u64, Fault> {
    match parsed {
        Err(_) if field.iter().all(|byte| matches!(byte, 0 | b' ')) => Ok(0),
        parsed => parsed.map_err(|_| Fault::Archive("a number in a header is no number")),
    }
}
