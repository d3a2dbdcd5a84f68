//! System calls spelled as text, so that a test can make any of them with any arguments:
//!
//! `call openat -100 s:/etc 0x200000 + getdents64 $ buf 4096`
//!
//! An argument is a number, `s:TEXT` (a C string), `p:N,N,…` (an array of 64-bit numbers), `w:N,N,…` (one of
//! 32-bit numbers), `x:HEX` (bytes), `buf` (64 KiB of zeroes), `$` (the last result above 2, in practice the
//! last descriptor), `%` (the previous result) or `.` (the process's own pid). `+` separates calls; each says
//! one line.

use std::ffi::CString;

use crate::{names::number_of, say};

/// A buffer for everything that a call writes, or reads if the test does not care.
const ROOM: usize = 64 * 1024;

/// Results of earlier calls for later ones.
#[derive(Clone, Copy)]
struct Last {
    descriptor: i64,
    result: i64,
}

/// Makes each call of the line.
pub(crate) fn calls(words: &[&str]) {
    let mut last = Last { descriptor: -1, result: 0 };
    for call in words.split(|word| *word == "+") {
        let Some((name, arguments)) = call.split_first() else { continue };
        let result = make(name, arguments, last);
        last.result = result.unwrap_or_default();
        if last.result > 2 {
            last.descriptor = last.result;
        }
        say(result);
    }
}

fn make(name: &str, arguments: &[&str], last: Last) -> Result<i64, i32> {
    let Some(number) = number_of(name) else { return Err(0) };
    let mut owned = Owned::default();
    let mut values = [0i64; 6];
    for (slot, argument) in values.iter_mut().zip(arguments) {
        *slot = owned.value(argument, last);
    }
    raw(number, values)
}

/// syscall(2).
pub(crate) fn raw(number: i64, [a, b, c, d, e, f]: [i64; 6]) -> Result<i64, i32> {
    // SAFETY: every pointer among the arguments is one of `Owned`'s buffers, which outlive the call and have
    // room for more than any of these calls writes; other values are numbers to the kernel.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
    } else {
        Ok(answer)
    }
}

/// The memory that pointers of a call point to.
#[derive(Default)]
struct Owned {
    texts: Vec<CString>,
    buffers: Vec<Vec<u64>>,
}

impl Owned {
    fn value(&mut self, argument: &str, last: Last) -> i64 {
        match argument.split_once(':') {
            Some(("s", text)) => self.text(text),
            Some(("p", numbers)) => {
                let numbers: Vec<u64> = split(numbers, last).map(i64::cast_unsigned).collect();
                self.buffer(&numbers)
            }
            Some(("w", numbers)) => {
                let bytes = split(numbers, last).flat_map(|word| word.to_ne_bytes().into_iter().take(4));
                let bytes = bytes.collect();
                self.bytes(bytes)
            }
            Some(("x", hex)) => {
                let digits: Vec<char> = hex.chars().collect();
                let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
                let bytes = pairs.filter_map(|pair| u8::from_str_radix(&pair, 16).ok()).collect();
                self.bytes(bytes)
            }
            _ if argument == "buf" => self.buffer(&[]),
            _ => number(argument, last),
        }
    }

    fn text(&mut self, text: &str) -> i64 {
        let text = CString::new(text).unwrap_or_default();
        let address = address_of(text.as_ptr());
        self.texts.push(text);
        address
    }

    fn bytes(&mut self, mut bytes: Vec<u8>) -> i64 {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words: Vec<u64> =
            bytes.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok().map(u64::from_ne_bytes)).collect();
        self.buffer(&words)
    }

    fn buffer(&mut self, contents: &[u64]) -> i64 {
        let mut buffer = contents.to_vec();
        buffer.resize(ROOM / 8, 0);
        let address = address_of(buffer.as_ptr());
        self.buffers.push(buffer);
        address
    }
}

fn split(numbers: &str, last: Last) -> impl Iterator<Item = i64> {
    numbers.split(',').map(move |text| number(text, last))
}

/// Decimal, or hexadecimal with `0x`; `$`, `%` and `.` as the module says.
fn number(text: &str, last: Last) -> i64 {
    match text {
        "$" => last.descriptor,
        "%" => last.result,
        "." => i64::from(std::process::id()),
        _ => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap_or_default().cast_signed(),
            None => text.parse().unwrap_or_default(),
        },
    }
}

/// An address as the kernel takes it.
pub(crate) fn address_of<T>(pointer: *const T) -> i64 {
    i64::try_from(pointer.expose_provenance()).unwrap_or_default()
}
