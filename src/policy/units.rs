//! Sizes and spans of time in text, such as `64M` and `30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer, de};

use crate::report::error::policy::PolicyError;

/// A number of bytes, at least 1, written as `4096`, `512K`, `64M` or `1GiB`. Units are powers of 1024.
///
/// In policy files it is a string or a plain number of bytes. It is always serialized as the number.
///
/// ```
/// use kennel::Size;
///
/// let size: Size = "64M".parse()?;
/// assert_eq!(size.bytes(), 64 * 1024 * 1024);
/// assert_eq!(size.to_string(), "64M");
/// assert!("1.5G".parse::<Size>().is_err());
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Largest unit first: a size is shown in the first unit that divides it.
const SIZE_UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
const SIZE_FORM: &str = "expected a whole number of bytes above 0, such as 4096, 512K, 64M, 1G or 2T";

impl Size {
    /// A size in bytes. [`Policy::validate`](crate::policy::Policy::validate) refuses a size of 0.
    pub const fn from_bytes(bytes: u64) -> Size {
        Size(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    fn parse(text: &str) -> Option<Size> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at(digits);
        let suffix = suffix.to_ascii_uppercase();
        let unit = match suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix) {
            "" if suffix.is_empty() => 1,
            letter => SIZE_UNITS.iter().find(|(name, _)| *name == letter)?.1,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
        (bytes > 0).then_some(Size(bytes))
    }
}

impl FromStr for Size {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Size::parse(text).ok_or_else(|| PolicyError::value("size", text, SIZE_FORM))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZE_UNITS.iter().find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => f.pad(&format!("{}{name}", self.0 / unit)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"64M\" or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        self.visit_str(&bytes.to_string())
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        self.visit_str(&bytes.to_string())
    }
}

/// A span of time above 0, written as `500ms`, `30s`, `1.5m`, `1h`, or `30` for seconds.
///
/// In policy files it is a string or a number of seconds. It is always serialized as a string.
///
/// ```
/// use kennel::Span;
/// use std::time::Duration;
///
/// let span: Span = "1.5s".parse()?;
/// assert_eq!(span.duration(), Duration::from_millis(1500));
/// assert_eq!(span.to_string(), "1500ms");
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

const NANOS_PER_SEC: u128 = 1_000_000_000;
const SPAN_FORM: &str = "expected a time above 0, such as 500ms, 30s, 1.5m, 1h, or seconds without a unit";

impl Span {
    /// The span as a [`Duration`].
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// The span in seconds, rounded up, for limits of the kernel.
    pub(crate) fn whole_seconds(self) -> u64 {
        self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)
    }

    fn parse(text: &str) -> Option<Span> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = match unit {
            "ms" => NANOS_PER_SEC / 1000,
            "s" | "" => NANOS_PER_SEC,
            "m" => 60 * NANOS_PER_SEC,
            "h" => 3600 * NANOS_PER_SEC,
            _ => return None,
        };
        let nanos = scale(number, unit)?;
        let seconds = u64::try_from(nanos / NANOS_PER_SEC).ok()?;
        let rest = u32::try_from(nanos % NANOS_PER_SEC).ok()?;
        (nanos > 0).then_some(Span(Duration::new(seconds, rest)))
    }
}

/// A decimal number times `unit`, exactly. `None` if the result is not a whole number or does not fit.
fn scale(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let power = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    // `str::parse` refuses an empty part and a second point.
    let part = fraction.parse::<u128>().ok()?.checked_mul(unit)?;
    let whole = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    if part.is_multiple_of(power) { whole.checked_add(part / power) } else { None }
}

impl From<Duration> for Span {
    /// [`Policy::validate`](crate::policy::Policy::validate) refuses a span of 0.
    fn from(duration: Duration) -> Self {
        Span(duration)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl FromStr for Span {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Span::parse(text).ok_or_else(|| PolicyError::value("time", text, SPAN_FORM))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let nanos = self.0.subsec_nanos() % 1_000_000;
        if nanos > 0 {
            f.pad(&format!("{}ms", format!("{millis}.{nanos:06}").trim_end_matches('0')))
        } else if self.0.subsec_nanos() > 0 {
            f.pad(&format!("{millis}ms"))
        } else {
            f.pad(&format!("{}s", self.0.as_secs()))
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time such as \"30s\" or a number of seconds")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
        self.visit_str(&seconds.to_string())
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
        self.visit_str(&seconds.to_string())
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
        let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
        duration.map(Span).ok_or_else(|| E::custom(PolicyError::value("time", seconds, SPAN_FORM)))
    }
}

/// The longest span: longer than any command runs, and short enough that adding it to a clock cannot
/// overflow.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The largest size of a file, in bytes.
pub(crate) const SIZE_MAX: u64 = i64::MAX.cast_unsigned();

/// Checks a size. Text cannot express a size of 0, but code can.
pub(crate) fn check_size(key: &str, size: Option<Size>) -> Result<(), PolicyError> {
    match size {
        Some(size) if !(1..=SIZE_MAX).contains(&size.bytes()) => {
            Err(PolicyError::value(key, size, "must be at least 1 byte and less than 2^63"))
        }
        _ => Ok(()),
    }
}

/// Checks a span. A span from code can be 0, or so long that it overflows a clock.
pub(crate) fn check_span(key: &str, span: Option<Span>) -> Result<(), PolicyError> {
    match span {
        Some(span) if span.duration().is_zero() || span.duration() > SPAN_MAX => {
            Err(PolicyError::value(key, span, "must be above 0 and at most a year"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_seconds_are_rounded_up() {
        for (text, seconds) in [("1ms", 1), ("1s", 1), ("1.001s", 2), ("2m", 120)] {
            assert_eq!(text.parse::<Span>().expect(text).whole_seconds(), seconds, "{text}");
        }
    }

    #[test]
    fn valid_sizes_are_parsed() {
        let mib = 1 << 20;
        for (text, bytes) in [
            ("4096", 4096),
            ("1", 1),
            ("007", 7),
            ("512K", 512 << 10),
            ("64M", 64 * mib),
            ("64m", 64 * mib),
            ("64MB", 64 * mib),
            ("64MiB", 64 * mib),
            ("64mIb", 64 * mib),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Size>().expect(text).bytes(), bytes, "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused_with_the_expected_form() {
        for text in [
            "",
            " ",
            "0",
            "0G",
            "-1",
            "+1",
            "1.5G",
            "M",
            "B",
            "iB",
            "4B",
            "4iB",
            "4 K",
            " 4K",
            "4K ",
            "4KK",
            "4P",
            "0x10",
            "1_000",
            "99999999999T",
            "18446744073709551616",
            "٣",
            "4µ",
            "4Kib\0",
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            let start = if text.is_empty() { "size: " } else { "size `" };
            assert!(error.starts_with(start) && error.ends_with(SIZE_FORM), "{error}");
        }
        let error = "1.5G".parse::<Size>().expect_err("not whole").to_string();
        assert!(error.contains("`1.5G`"), "{error}");
    }

    #[test]
    fn size_shows_the_largest_exact_suffix() {
        for (bytes, text) in
            [(1536, "1536"), (1024, "1K"), (3 << 40, "3T"), ((1 << 30) + (1 << 20), "1025M"), (0, "0")]
        {
            assert_eq!(Size::from_bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn size_in_json_is_text_or_bytes_and_serializes_as_bytes() {
        for json in ["\"1K\"", "1024"] {
            let size: Size = serde_json::from_str(json).expect(json);
            assert_eq!(serde_json::to_string(&size).expect("serialises"), "1024");
        }
        for json in ["0", "-1", "1.5", "null", "[]", "\"\"", "true"] {
            serde_json::from_str::<Size>(json).expect_err(json);
        }
    }

    #[test]
    fn valid_spans_are_parsed() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("2", 2_000),
            ("1.5s", 1500),
            ("1.5", 1500),
            ("0.5h", 1_800_000),
            ("01.50s", 1500),
        ] {
            assert_eq!(text.parse::<Span>().expect(text).duration(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn invalid_spans_are_refused_with_the_expected_form() {
        for text in [
            "",
            " ",
            "0",
            "0ms",
            "0.0s",
            "-1s",
            "+1s",
            "1.",
            ".5s",
            ".",
            "1..5",
            "1.2.3s",
            "1d",
            "s",
            "1 s",
            "1S",
            "1e3",
            "inf",
            "nan",
            "1.0000000001s",
            "99999999999999999999s",
            "5124095576030432h",
            "٣s",
        ] {
            let error = text.parse::<Span>().expect_err(text).to_string();
            let start = if text.is_empty() { "time: " } else { "time `" };
            assert!(error.starts_with(start) && error.ends_with(SPAN_FORM), "{error}");
        }
        let long = "1".repeat(1 << 20) + "." + &"1".repeat(1 << 20);
        assert!(long.parse::<Span>().expect_err("too long").to_string().len() < 300);
    }

    #[test]
    fn span_in_json_is_text_or_seconds_and_serializes_as_text() {
        for (json, text) in
            [("\"1.5s\"", "\"1500ms\""), ("1.5", "\"1500ms\""), ("30", "\"30s\""), ("\"1h\"", "\"3600s\"")]
        {
            let span: Span = serde_json::from_str(json).expect(json);
            assert_eq!(serde_json::to_string(&span).expect("serialises"), text);
        }
        for json in ["0", "0.0", "-1", "-1.5", "1e300", "1e-300", "null", "{}", "\"\""] {
            serde_json::from_str::<Span>(json).expect_err(json);
        }
    }

    proptest! {
        #[test]
        fn size_round_trips(bytes in 1_u64..) {
            let size = Size::from_bytes(bytes);
            prop_assert_eq!(size.to_string().parse::<Size>().expect("parses"), size);
        }

        #[test]
        fn round_sizes_round_trip(count in 1_u64..1024, shift in 0_u32..54) {
            let size = Size::from_bytes(count << shift);
            prop_assert_eq!(size.to_string().parse::<Size>().expect("parses"), size);
        }

        #[test]
        fn span_round_trips(seconds: u64, nanos in 1_u32..1_000_000_000) {
            let span = Span::from(Duration::new(seconds, nanos));
            prop_assert_eq!(span.to_string().parse::<Span>().expect("parses"), span);
        }

        #[test]
        fn whole_spans_round_trip(millis in 1_u64..) {
            let span = Span::from(Duration::from_millis(millis));
            prop_assert_eq!(span.to_string().parse::<Span>().expect("parses"), span);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9.]{0,40}[a-zA-Z]{0,4}|.*") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Span>();
        }
    }
}
