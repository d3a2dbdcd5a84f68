//! Objects of NATS (feature `nats`). Everybody who may send jobs writes there. So an object is read by
//! itself, without the links that NATS follows, and only as far as its size goes.

use async_nats::jetstream::Context;
use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata, ObjectStore};
use async_nats::jetstream::stream::Stream;

use crate::error::Error;

/// The longest object, in bytes.
const LONGEST: usize = 256 << 20;

/// The longest piece of an object, in bytes, as NATS has it.
const PIECE: usize = 128 << 10;

/// A bucket of objects.
#[derive(Clone)]
pub(crate) struct Objects {
    bucket: String,
    store: ObjectStore,
    stream: Stream<()>,
}

impl Objects {
    pub(crate) async fn open(context: &Context, bucket: String) -> Result<Self, async_nats::Error> {
        let store = context.get_object_store(&bucket).await?;
        let stream = context.get_stream_no_info(format!("OBJ_{bucket}")).await?;
        Ok(Self { bucket, store, stream })
    }

    /// Stores an object. `room` is what a message may have, in bytes.
    pub(crate) async fn put(
        &self,
        name: String,
        mut bytes: &[u8],
        room: usize,
    ) -> Result<(), async_nats::Error> {
        let meta = ObjectMetadata { name, chunk_size: Some(PIECE.min(room)), ..ObjectMetadata::default() };
        self.store.put(meta, &mut bytes).await?;
        Ok(())
    }

    /// Reads an object. `None`: NATS is away, or parts of it are.
    pub(crate) async fn read(&self, name: &str) -> Option<Result<Vec<u8>, Error>> {
        let info = self.store.info(name).await.ok().filter(|info| !info.deleted)?;
        match self.check(&info, name) {
            Ok(()) => self.pieces(&info).await.map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    fn check(&self, info: &ObjectInfo, name: &str) -> Result<(), Error> {
        let is_plain = !info.nuid.is_empty() && info.nuid.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if info.options.as_ref().is_some_and(|options| options.link.is_some()) {
            return Err(Error::protocol("a result that is a link"));
        }
        if !is_plain || info.bucket != self.bucket || info.name != name {
            return Err(Error::protocol("a result that is an object of another name"));
        }
        if info.size > LONGEST {
            return Err(Error::TooLarge { what: "a result", most: LONGEST as u64 });
        }
        Ok(())
    }

    /// One after the other: a consumer would wait for a piece that is missing.
    async fn pieces(&self, info: &ObjectInfo) -> Option<Vec<u8>> {
        let subject = format!("$O.{}.C.{}", self.bucket, info.nuid);
        let (mut bytes, mut next) = (Vec::new(), 1);
        while bytes.len() < info.size {
            let piece = self.stream.raw_message_builder().sequence(next).next_by_subject(&subject);
            let piece = piece.send().await.ok()?;
            if piece.payload.is_empty() || piece.payload.len() > info.size - bytes.len() {
                return None;
            }
            bytes.extend_from_slice(&piece.payload);
            next = piece.sequence + 1;
        }
        Some(bytes)
    }
}
