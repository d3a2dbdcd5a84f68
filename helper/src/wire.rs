//! Encodes values and decodes them: little-endian integers, NUL-terminated strings, counted lists.
//!
//! Neither direction panics or allocates: decoding borrows from the input, encoding appends to a [`Sink`].

use core::{ffi::CStr, fmt};

/// The bytes not yet decoded.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'w> {
    rest: &'w [u8],
}

impl<'w> Cursor<'w> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub fn new(bytes: &'w [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes the next `count` bytes. Returns `None` if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Option<&'w [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// The bytes not yet decoded.
    #[cfg(not(kennel_inside))]
    #[must_use]
    pub fn remaining(&self) -> &'w [u8] {
        self.rest
    }

    /// Whether all bytes were decoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// A value in a plan or a control message.
pub trait Field<'w>: Sized {
    /// Decodes one value. Returns `None` if the bytes are malformed.
    fn take(cursor: &mut Cursor<'w>) -> Option<Self>;

    /// Appends the value's bytes.
    fn put(&self, out: &mut impl Sink);
}

/// Where encoded bytes go: a growing vector outside, a fixed buffer inside.
pub trait Sink {
    /// Appends `bytes`.
    fn append(&mut self, bytes: &[u8]);
}

#[cfg(not(kennel_inside))]
impl Sink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl<'w> Field<'w> for $ty {
            fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
                Some(Self::from_le_bytes(cursor.bytes(size_of::<Self>())?.try_into().ok()?))
            }

            fn put(&self, out: &mut impl Sink) {
                out.append(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u16, u32, u64, i32);

impl<'w> Field<'w> for &'w [u8] {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        let length = u32::take(cursor)?;
        cursor.bytes(length as usize)
    }

    fn put(&self, out: &mut impl Sink) {
        length(self.len()).put(out);
        out.append(self);
    }
}

/// A string that system calls can take in place: the encoding includes its NUL.
impl<'w> Field<'w> for &'w CStr {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        CStr::from_bytes_with_nul(Field::take(cursor)?).ok()
    }

    fn put(&self, out: &mut impl Sink) {
        self.to_bytes_with_nul().put(out);
    }
}

/// A counted list of strings, such as an argument vector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct List<'w> {
    count: u32,
    strings: &'w [u8],
}

/// Prints only the number of strings: an environment may hold secrets.
impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(format_args!("{} strings", self.count))
    }
}

impl<'w> List<'w> {
    /// The number of strings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The strings in order. Ends early if the bytes are malformed.
    pub fn iter(&self) -> impl Iterator<Item = &'w CStr> + use<'w> {
        let mut cursor = Cursor::new(self.strings);
        (0..self.count).map_while(move |_| Field::take(&mut cursor))
    }
}

impl<'w> Field<'w> for List<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        Some(Self { count: Field::take(cursor)?, strings: Field::take(cursor)? })
    }

    fn put(&self, out: &mut impl Sink) {
        self.count.put(out);
        self.strings.put(out);
    }
}

/// Builds the bytes that a [`List`] borrows.
#[cfg(not(kennel_inside))]
#[derive(Clone, Default)]
pub struct ListBuf {
    count: u32,
    strings: Vec<u8>,
}

#[cfg(not(kennel_inside))]
impl fmt::Debug for ListBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list().fmt(f)
    }
}

#[cfg(not(kennel_inside))]
impl ListBuf {
    /// Reserves that many bytes for strings, NULs included, so that pushing them does not reallocate.
    #[must_use]
    pub fn with_room(strings: usize, bytes: usize) -> Self {
        // A length precedes each string.
        Self {
            count: 0,
            strings: Vec::with_capacity(bytes + strings * (size_of::<u32>() + size_of::<u64>())),
        }
    }

    /// The bytes, for a caller that wipes them.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.strings
    }

    /// Appends a string.
    pub fn push(&mut self, string: &CStr) {
        self.count += 1;
        string.put(&mut self.strings);
    }

    /// The list, borrowed.
    #[must_use]
    pub fn list(&self) -> List<'_> {
        List { count: self.count, strings: &self.strings }
    }
}

#[cfg(not(kennel_inside))]
impl<S: AsRef<CStr>> FromIterator<S> for ListBuf {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut list = Self::default();
        strings.into_iter().for_each(|string| list.push(string.as_ref()));
        list
    }
}

/// Lengths are 32 bits on the wire. Decoding refuses the length that a longer value gets.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Declares an enum whose variants are records on the wire: a 32-bit number, then the fields in order.
/// Variants are numbered by position. What other versions of Kennel read says its number.
macro_rules! records {
    ($lt:lifetime, $(#[$outer:meta])* enum $name:ident $(<$used:lifetime>)? {
        $( $(#[$doc:meta])* $($number:literal =)? $variant:ident {
            $( $(#[$field_doc:meta])* $field:ident: $ty:ty ),* $(,)?
        } ),* $(,)?
    }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(kennel_inside), expect(
            missing_docs,
            reason = "fields carry the names of the arguments of the call that their variant documents"
        ))]
        pub enum $name $(<$used>)? {
            $( $(#[$doc])* $variant { $( $(#[$field_doc])* $field: $ty ),* } ),*
        }

        const _: () = {
        #[repr(u32)]
        enum Number {
            $( $variant $(= $number)? ),*
        }

        impl<$lt> Field<$lt> for $name $(<$used>)? {
            fn take(cursor: &mut Cursor<$lt>) -> Option<Self> {
                match u32::take(cursor)? {
                    $( number if number == Number::$variant as u32 => {
                        Some(Self::$variant { $( $field: Field::take(cursor)? ),* })
                    } )*
                    _ => None,
                }
            }

            fn put(&self, out: &mut impl Sink) {
                match *self {
                    $( Self::$variant { $( $field ),* } => {
                        u32::put(&(Number::$variant as u32), out);
                        $( Field::put(&$field, out); )*
                    } )*
                }
            }
        }
        };
    };
}
pub(crate) use records;
