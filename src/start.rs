//! The one start: the inside born, then, while it boots, the plan into a memfd, and both it and stdio over the
//! control socket. Blocks its thread for about as long as posix_spawn(3) would.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use kennel_helper::{plan::Plan, wire::Field};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
};

use crate::{
    Error, Protection,
    compile::{Compiled, request::RequestBuf},
    host::remedy::remedy,
    image::Image,
    inside::Inside,
    sys::{self, BirthError},
};

/// The inside's image, made once for a sandbox; the one on disk only where memfds may not be executed.
#[derive(Debug)]
pub(crate) struct Images {
    sealed: Option<Image>,
    on_disk: OnceLock<Image>,
}

impl Images {
    pub(crate) fn new() -> Result<Self, Error> {
        let sealed = match Image::sealed() {
            // vm.memfd_noexec=2 refuses to make one at all.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            sealed => Some(sealed.map_err(Error::io("create a memfd for the program of the inside"))?),
        };
        Ok(Self { sealed, on_disk: OnceLock::new() })
    }

    /// Starts the inside; answers its pidfd.
    fn give_birth(&self, control: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        if let Some(sealed) = self.sealed.as_ref().filter(|_| self.on_disk.get().is_none()) {
            match sys::give_birth(sealed.as_fd(), control) {
                // An older kernel with that setting, or a security module, refuses to execute it.
                Err(BirthError::Exec(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
                born => return born.map_err(birth_error),
            }
        }
        let image = match self.on_disk.get() {
            Some(image) => image,
            None => {
                let image = Image::on_disk().map_err(|error| birth_error(BirthError::Exec(error)))?;
                // Another thread may have been faster; its image is as good.
                self.on_disk.get_or_init(|| image)
            }
        };
        sys::give_birth(image.as_fd(), control).map_err(birth_error)
    }
}

fn birth_error(error: BirthError) -> Error {
    match error {
        BirthError::Clone(source) => {
            let errno = source.raw_os_error().unwrap_or_default();
            let exhausted = matches!(errno, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE);
            let remedy = if exhausted { None } else { remedy(Protection::UserNamespace, errno) };
            let step = "new user and pid namespace".to_owned();
            Error::Step { step, protection: Protection::UserNamespace, source, remedy }
        }
        BirthError::Exec(source) => Error::Step {
            step: "execute the program of the inside".to_owned(),
            protection: Protection::UserNamespace,
            source,
            remedy: Some(
                "allow executing memfds (sysctl -w vm.memfd_noexec=0), or have XDG_RUNTIME_DIR or /tmp on a \
                 file system that is not mounted noexec"
                    .to_owned(),
            ),
        },
    }
}

/// Starts a sandbox for one request.
pub(crate) fn start(
    images: &Images,
    compiled: &Compiled,
    request: &RequestBuf,
    stdio: [BorrowedFd<'_>; 3],
) -> Result<Inside, Error> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .map_err(|errno| Error::io("make the control socket")(errno.into()))?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map_err(|errno| Error::io("make the control socket non-blocking")(errno.into()))?;
    // The inside needs a moment to begin; the plan is written meanwhile.
    let pidfd = images.give_birth(theirs.as_fd())?;
    drop(theirs);
    let inside = Inside::new(ours, pidfd, compiled.watches.clone());
    let (plan, message) = write_plan(compiled, request).map_err(Error::io("write the plan to a memfd"))?;
    inside.hand_over(&message, stdio, plan.as_fd()).map_err(Error::io("hand over the plan"))?;
    Ok(inside)
}

/// The plan in a memfd, with zeroed scratch behind it; and the message that tells both lengths.
fn write_plan(compiled: &Compiled, request: &RequestBuf) -> io::Result<(File, Vec<u8>)> {
    let (request, scratch) = request.encode();
    let mut bytes = Vec::with_capacity(compiled.setup.bytes.len() + request.len() + 1024);
    Plan { setup: &compiled.setup.bytes, payload: &compiled.payload.bytes, request: &request }
        .put(&mut bytes);
    let too_long = |_| io::Error::from(io::ErrorKind::ArgumentListTooLong);
    let mut message = Vec::new();
    u32::try_from(bytes.len()).map_err(too_long)?.put(&mut message);
    u32::try_from(scratch).map_err(too_long)?.put(&mut message);
    let mut file = File::from(memfd_create(c"kennel-plan", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes)?;
    let scratch_at = bytes.len().next_multiple_of(size_of::<usize>());
    file.set_len((scratch_at + scratch) as u64)?;
    Ok((file, message))
}
