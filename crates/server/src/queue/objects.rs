//! What is too large for a message: bodies of jobs, and answers, in an object store of NATS. Everybody who
//! may send jobs writes there. So an object is read by itself, without the links that NATS follows, and only
//! as far as its size goes.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::object_store::{Config, InfoErrorKind, ObjectInfo, ObjectMetadata, ObjectStore};
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;

use crate::queue::Trouble;

/// The longest piece of an object, in bytes, as NATS has it.
const PIECE: usize = 128 << 10;

/// The bucket.
pub(crate) struct Objects {
    bucket: String,
    store: ObjectStore,
    stream: Stream<()>,
}

/// What an object has.
pub(crate) enum Object {
    There(Bytes),
    /// Nobody can have it any more.
    Wrong(String),
}

impl Objects {
    /// Finds the bucket, and makes it if it is missing.
    pub(crate) async fn open(context: &Context, bucket: String, keep: Duration) -> Result<Self, Trouble> {
        let store = match context.get_object_store(&bucket).await {
            Ok(store) => store,
            Err(_) => {
                let config = Config { bucket: bucket.clone(), max_age: keep, ..Config::default() };
                context.create_object_store(config).await?
            }
        };
        let stream = context.get_stream_no_info(format!("OBJ_{bucket}")).await?;
        Ok(Self { bucket, store, stream })
    }

    /// Reads an object of at most so many bytes.
    ///
    /// # Errors
    /// NATS cannot be reached, or parts of it are missing.
    pub(crate) async fn read(&self, name: &str, most: usize) -> Result<Object, Trouble> {
        let info = match self.store.info(name).await {
            Ok(info) if !info.deleted => info,
            Err(error) if error.kind() != InfoErrorKind::NotFound => return Err(error.into()),
            _ => return Ok(Object::Wrong("it is not in the object store any more".into())),
        };
        if let Some(why) = self.refuses(&info, name) {
            return Ok(Object::Wrong(why.into()));
        }
        if info.size > most {
            return Ok(Object::Wrong(format!("{} bytes, and {most} are the most", info.size)));
        }
        self.pieces(&info).await.map(|bytes| Object::There(bytes.into()))
    }

    /// Why an object is none of this bucket.
    fn refuses(&self, info: &ObjectInfo, name: &str) -> Option<&'static str> {
        if info.options.as_ref().is_some_and(|options| options.link.is_some()) {
            return Some("it is a link");
        }
        let is_plain = !info.nuid.is_empty() && info.nuid.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_own = info.bucket == self.bucket && info.name == name;
        (!is_plain || !is_own).then_some("it is an object of another name")
    }

    /// One after the other: a consumer would wait for a piece that is missing.
    async fn pieces(&self, info: &ObjectInfo) -> Result<Vec<u8>, Trouble> {
        let subject = format!("$O.{}.C.{}", self.bucket, info.nuid);
        let (mut bytes, mut next) = (Vec::new(), 1);
        while bytes.len() < info.size {
            let piece = self.stream.raw_message_builder().sequence(next).next_by_subject(&subject);
            let piece = piece.send().await.map_err(|error| {
                format!("{} of {} bytes of the object came: {error}", bytes.len(), info.size)
            })?;
            if piece.payload.is_empty() || piece.payload.len() > info.size - bytes.len() {
                return Err(
                    format!("the object has not the size of {} bytes that it tells", info.size).into()
                );
            }
            bytes.extend_from_slice(&piece.payload);
            next = piece.sequence + 1;
        }
        Ok(bytes)
    }

    /// Stores an object. `room` is what a message may have, in bytes.
    pub(crate) async fn put(&self, name: &str, mut bytes: &[u8], room: usize) -> Result<(), Trouble> {
        let chunk_size = Some(PIECE.min(room));
        let meta = ObjectMetadata { name: name.to_owned(), chunk_size, ..ObjectMetadata::default() };
        self.store.put(meta, &mut bytes).await?;
        Ok(())
    }

    /// Removes an object that nobody needs any more.
    pub(crate) async fn forget(&self, name: &str) {
        // It goes by its age otherwise.
        let _ = self.store.delete(name).await;
    }
}
