//! What belongs to one instance of a program: its WASI, its limits, and its side of Kennel's functions.

use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::preview1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtxBuilder, WasiCtxView, WasiView};

use crate::connector::host::CallContext;
use crate::connector::limits::{Limiter, LimitsInForce};
use crate::connector::output::Captured;

/// Resources of WASI that an instance may have at the same time: streams, things to wait for, and the like.
const MAX_RESOURCES: usize = 1024;

/// Random bytes that an instance gets at once.
const MAX_RANDOM: u64 = 64 << 10;

/// The data of a store.
pub(crate) struct GuestState {
    pub(crate) wasi: WasiP1Ctx,
    pub(crate) limiter: Limiter,
    pub(crate) host: CallContext,
}

/// The outputs of one instance.
pub(crate) struct GuestStreams {
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
}

impl GuestState {
    /// WASI has clocks, random numbers and the standard streams. It has no argument, no variable, no
    /// directory, and no socket.
    pub(crate) fn new(input: Vec<u8>, limits: LimitsInForce, host: CallContext) -> (Self, GuestStreams) {
        let streams = GuestStreams { stdout: Captured::stdout(), stderr: Captured::stderr() };
        let mut wasi = WasiCtxBuilder::new()
            .stdin(MemoryInputPipe::new(input))
            .stdout(streams.stdout.clone())
            .stderr(streams.stderr.clone())
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(MAX_RANDOM)
            .build_p1();
        wasi.ctx().table.set_max_capacity(MAX_RESOURCES);
        (Self { wasi, limiter: Limiter::new(limits), host }, streams)
    }
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.ctx()
    }
}
