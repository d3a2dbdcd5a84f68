//! Messages on stdin and stdout, one a line. A message is weighed before it is parsed, and refused if it is
//! too large or if calls that are not answered yet hold too much. The end of stdin stops the calls that still
//! run.

pub(super) mod flow;
mod weight;

use std::{io, mem, sync::Arc, time::Duration};

use rmcp::{
    RoleServer,
    model::{ErrorCode, ErrorData, GetExtensions, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        Transport,
        async_rw::{JsonRpcMessageCodec, JsonRpcMessageCodecError},
    },
};
use serde_json::error::Category;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex,
    time::{sleep, timeout},
};
use tokio_util::{bytes::BytesMut, codec::Decoder, sync::CancellationToken};

use crate::report;
use flow::Flow;
use weight::{HEAVIEST, Scale};

/// How long calls may still finish after the end of stdin, so that a script can pipe its requests in.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// The code of JSON-RPC for an error that the server defines.
const BUSY: ErrorCode = ErrorCode(-32000);

/// One client at the other ends of stdin and stdout.
pub(crate) struct Lines<R, W> {
    input: BufReader<R>,
    /// The line that is being read, as far as it is not too heavy.
    line: BytesMut,
    scale: Scale,
    codec: JsonRpcMessageCodec<RxJsonRpcMessage<RoleServer>>,
    output: Arc<Mutex<Option<W>>>,
    flow: Arc<Flow>,
    /// Cancelled a moment after the end of the input.
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Lines<R, W> {
    pub(crate) fn new(input: R, output: W, flow: Arc<Flow>, ended: CancellationToken) -> Self {
        Self {
            input: BufReader::new(input),
            line: BytesMut::new(),
            scale: Scale::default(),
            codec: JsonRpcMessageCodec::default(),
            output: Arc::new(Mutex::new(Some(output))),
            flow,
            ended,
        }
    }

    /// Reads a line; the last one may lack its newline. `None` at the end of the input. Dropping the future
    /// loses nothing.
    async fn line(&mut self) -> Option<(usize, Option<RequestId>)> {
        loop {
            let there = match self.input.fill_buf().await {
                Ok([]) if !self.line.is_empty() => {
                    self.line.extend_from_slice(b"\n");
                    return Some(self.scale.end());
                }
                Ok([]) | Err(_) => return None,
                Ok(there) => there,
            };
            let end = there.iter().position(|byte| *byte == b'\n');
            let piece = there.get(..=end.unwrap_or(there.len() - 1)).unwrap_or(there);
            self.scale.add(piece);
            if self.scale.weight() <= HEAVIEST {
                self.line.extend_from_slice(piece);
            } else {
                self.line = BytesMut::new();
            }
            let count = piece.len();
            self.input.consume(count);
            if end.is_some() {
                return Some(self.scale.end());
            }
        }
    }

    /// Says why a message is not served: to the client, or to a person if the message has no id.
    fn refuse(&mut self, id: Option<RequestId>, error: ErrorData) {
        match id {
            Some(_) => self.answer(TxJsonRpcMessage::<RoleServer>::error(error, id)),
            None => {
                report::say(format_args!("kennel: mcp: skipped a message without an id: {}", error.message))
            }
        }
    }

    fn answer(&mut self, message: TxJsonRpcMessage<RoleServer>) {
        let sending = self.send(message);
        // `receive` may be dropped in the middle, and half of a line would stay. If the client has left,
        // nobody is told.
        tokio::spawn(async move { drop(sending.await) });
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Transport<RoleServer>
    for Lines<R, W>
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = Arc::clone(&self.output);
        let line = serde_json::to_vec(&message).map(|mut line| {
            line.push(b'\n');
            (self.flow.answer(line.len()), line)
        });
        async move {
            let (_unread, line) = line?;
            let mut output = output.lock().await;
            let output = output.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            output.write_all(&line).await?;
            output.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            self.flow.room().await;
            let Some((weight, id)) = self.line().await else {
                let ended = self.ended.clone();
                tokio::spawn(async move {
                    sleep(LAST_CALLS).await;
                    ended.cancel();
                });
                return None;
            };
            let mut line = mem::take(&mut self.line);
            if weight > HEAVIEST {
                self.refuse(id, ErrorData::invalid_request(too_large(), None));
                continue;
            }
            let Some(share) = self.flow.share(weight) else {
                let busy = "calls that are not answered yet hold 64 MiB: wait until some of them have ended";
                self.refuse(id, ErrorData::new(BUSY, busy, None));
                continue;
            };
            match self.codec.decode(&mut line) {
                Ok(Some(mut message)) => {
                    if let JsonRpcMessage::Request(call) = &mut message {
                        call.request.extensions_mut().insert(share);
                    }
                    return Some(message);
                }
                Err(JsonRpcMessageCodecError::Serde(error))
                    if matches!(error.classify(), Category::Data | Category::Io) =>
                {
                    self.answer(TxJsonRpcMessage::<RoleServer>::error(
                        ErrorData::invalid_request("Invalid request", None),
                        id,
                    ));
                }
                // An answer to what is no JSON could be another message that is no JSON.
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        // A client that does not read keeps it forever.
        if let Ok(mut output) = timeout(LAST_CALLS, self.output.lock()).await {
            output.take();
        }
        Ok(())
    }
}

fn too_large() -> String {
    format!(
        "the message is too large: it may have {} MiB, counts 128 bytes more for each value, and its id has at most 256 bytes",
        HEAVIEST >> 20
    )
}
