//! Frames of the Connect protocol: a byte of flags, four bytes of length, and JSON. The last frame of a
//! stream has the flag 2.
//!
//! The crate `connectrpc` was looked at: it generates code from protocol buffers, whose binary form no client
//! of these routes sends, and brings a compiler for them. These are the lines that remain.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::wire::failure::Failure;

/// The longest message of a client.
pub(crate) const MOST: usize = 16 << 20;

const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;

/// Adds a message.
pub(crate) fn put(frames: &mut BytesMut, json: &[u8]) {
    head(frames, 0, json.len());
    frames.put_slice(json);
}

/// Adds the end of the stream: without a failure, everything before it is all there is.
pub(crate) fn put_end(frames: &mut BytesMut, failure: Option<&Failure>) {
    let json = match failure {
        None => "{}".to_owned(),
        Some(failure) => {
            serde_json::json!({ "error": { "code": failure.code(), "message": failure.message } }).to_string()
        }
    };
    head(frames, END, json.len());
    frames.put_slice(json.as_bytes());
}

fn head(frames: &mut BytesMut, flags: u8, length: usize) {
    frames.put_u8(flags);
    // Messages are pieces of output, or short.
    frames.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Takes frames out of a body that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
    is_over: bool,
}

impl Frames {
    pub(crate) fn add(&mut self, piece: &[u8]) {
        if !self.is_over {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// The next message that is complete; `None` if there is none yet, or after the last one.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some((head, _)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST {
            return Err(Failure::new(
                axum::http::StatusCode::PAYLOAD_TOO_LARGE,
                format!("a message of {length} bytes: {MOST} is the limit"),
            ));
        }
        if flags & COMPRESSED != 0 {
            return Err(Failure::not_done("compressed messages are not read: send them as they are"));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let message = self.buffer.split_to(length).freeze();
        if flags & END != 0 {
            self.is_over = true;
            self.buffer.clear();
            return Ok(None);
        }
        Ok(Some(message))
    }

    /// The body has ended.
    ///
    /// # Errors
    /// It was cut off within a frame.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        if self.buffer.is_empty() { Ok(()) } else { Err(Failure::bad("the body ends within a message")) }
    }
}

/// Follows a body that passes by, to tell whether it is between two messages.
#[derive(Debug, Default)]
pub(crate) struct Boundary {
    /// Bytes of a head that have passed.
    head: [u8; HEAD],
    has: usize,
    /// Bytes of a message that are still to come.
    left: u64,
}

impl Boundary {
    pub(crate) fn pass(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.left > 0 {
                let passed = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
                piece = piece.get(passed..).unwrap_or_default();
                self.left -= passed as u64;
                continue;
            }
            let (Some((first, rest)), Some(next)) = (piece.split_first(), self.head.get_mut(self.has)) else {
                return;
            };
            *next = *first;
            self.has += 1;
            piece = rest;
            if self.has == HEAD {
                let [_, length @ ..] = self.head;
                (self.left, self.has) = (u64::from(u32::from_be_bytes(length)), 0);
            }
        }
    }

    pub(crate) fn is_between(&self) -> bool {
        self.left == 0 && self.has == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[&[u8]]) -> BytesMut {
        let mut frames = BytesMut::new();
        messages.iter().for_each(|message| put(&mut frames, message));
        put_end(&mut frames, None);
        frames
    }

    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut() {
        let messages: [&[u8]; 4] = [b"{}", b"", b"{\"a\":1}", &[b'x'; 70_000]];
        let body = framed(&messages);
        for size in [1, 2, 4, 5, 6, 7, 1000, body.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in body.chunks(size) {
                frames.add(piece);
                while let Some(message) = frames.next().expect("good") {
                    found.push(message);
                }
            }
            assert!(found.iter().map(|message| &message[..]).eq(messages), "pieces of {size}");
            frames.end().expect("complete");
        }
    }

    #[test]
    fn a_boundary_is_where_a_message_ends() {
        let body = framed(&[b"{}", b"", &[b'x'; 300]]);
        let ends = [0, 7, 12, 317, 324];
        for size in [1, 3, 5, 100, 400] {
            let (mut boundary, mut passed) = (Boundary::default(), 0);
            for piece in body.chunks(size) {
                boundary.pass(piece);
                passed += piece.len();
                assert_eq!(boundary.is_between(), ends.contains(&passed), "{passed} in pieces of {size}");
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut frames = Frames::default();
        frames.add(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(frames.next().expect_err("too long").status, 413);
        let mut frames = Frames::default();
        frames.add(&[1, 0, 0, 0, 1, b'x']);
        assert_eq!(frames.next().expect_err("compressed").status, 501);
        let mut frames = Frames::default();
        frames.add(&[0, 0, 0, 0, 9, b'x']);
        assert!(frames.next().expect("not yet").is_none());
        frames.end().expect_err("cut off");
    }

    /// Takes everything out of a body that comes in these pieces.
    fn taken(body: &[u8], sizes: &[usize]) -> Result<Vec<Bytes>, Failure> {
        let (mut frames, mut found, mut rest, mut sizes) =
            (Frames::default(), Vec::new(), body, sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().copied().unwrap_or(1).min(rest.len()));
            rest = after;
            frames.add(piece);
            while let Some(message) = frames.next()? {
                found.push(message);
            }
            assert!(frames.buffer.len() <= body.len().min(HEAD + MOST), "nothing is kept that was not sent");
        }
        frames.end().map(|()| found)
    }

    // PROPTEST_CASES=1000000 makes them long.
    proptest! {
        #[test]
        fn every_cut_gives_the_same_messages(
            messages in vec(vec(any::<u8>(), 0..300), 0..20),
            sizes in vec(1_usize..400, 1..20),
        ) {
            let pieces: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            let found = taken(&framed(&pieces), &sizes).expect("good");
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn garbage_is_read_in_the_same_way_however_it_is_cut(
            garbage in vec(prop_oneof![Just(0_u8), Just(2), any::<u8>()], 0..400),
            sizes in vec(1_usize..40, 1..20),
        ) {
            let result = |taken: Result<Vec<Bytes>, Failure>| taken.map_err(|failure| failure.message);
            prop_assert_eq!(result(taken(&garbage, &sizes)), result(taken(&garbage, &[garbage.len().max(1)])));
            let mut boundary = Boundary::default();
            boundary.pass(&garbage);
            let mut again = Boundary::default();
            garbage.chunks(sizes[0]).for_each(|piece| again.pass(piece));
            prop_assert_eq!(boundary.is_between(), again.is_between());
        }
    }
}
