//! What a host tells its fronts, a line for each thing, on an answer that never ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::broadcast::Receiver;

use crate::sandboxes::{Front, Listening, Sandboxes};
use crate::wire::VERSION;
use crate::wire::sandbox::News;

/// The body of that answer.
pub(crate) fn body(sandboxes: &Arc<Sandboxes>) -> Body {
    let Listening { all, commands, news, front } = sandboxes.listen();
    let hello = News::Hello { version: VERSION, sandboxes: all.len(), commands };
    let first = [hello].into_iter().chain(all.into_iter().map(News::Sandbox)).collect();
    let telling = Telling { first, news, _front: front };
    Body::from_stream(stream::unfold(telling, |mut telling| async {
        let line = telling.next().await?;
        Some((Ok::<_, Infallible>(line), telling))
    }))
}

struct Telling {
    first: VecDeque<News>,
    news: Receiver<News>,
    _front: Front,
}

impl Telling {
    /// The next line. `None` if the front is too far behind: it asks again, and is told everything.
    async fn next(&mut self) -> Option<Bytes> {
        let news = match self.first.pop_front() {
            Some(news) => news,
            None => self.news.recv().await.ok()?,
        };
        let mut line = serde_json::to_vec(&news).ok()?;
        line.push(b'\n');
        Some(line.into())
    }
}
