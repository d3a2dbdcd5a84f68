//! The one start: the inside born, and while it boots and makes its namespaces, the plan handed over. Blocks its thread
//! for about as long as posix_spawn(3) would.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use kennel_helper::{
    control::{Handover, Role},
    wire::Field,
};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
};

use crate::{
    Error, Protection,
    compile::{Section, Shape},
    host::remedy,
    image::Image,
    inside::Inside,
    prepared::{Bytes, Prepared},
    sys::{self, BirthError, Users},
};

/// The inside's image, made once for a sandbox; the one on disk only where memfds may not be executed.
#[derive(Debug)]
pub(crate) struct Images {
    users: Users,
    sealed: Option<Image>,
    on_disk: OnceLock<Image>,
}

impl Images {
    pub(crate) fn new(users: Users) -> Result<Self, Error> {
        let sealed = match Image::sealed() {
            // vm.memfd_noexec=2 refuses to make one at all.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            sealed => Some(sealed.map_err(Error::io("create a memfd for the program of the inside"))?),
        };
        Ok(Self { users, sealed, on_disk: OnceLock::new() })
    }

    /// Starts the inside; answers its pidfd.
    fn give_birth(&self, control: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        if let Some(sealed) = self.sealed.as_ref().filter(|_| self.on_disk.get().is_none()) {
            match sys::give_birth(sealed.as_fd(), control, self.users) {
                // An older kernel with that setting, or a security module, refuses to execute it.
                Err(BirthError::Exec(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
                born => return born.map_err(|error| birth_error(error, self.users)),
            }
        }
        let image = match self.on_disk.get() {
            Some(image) => image,
            None => {
                let image =
                    Image::on_disk().map_err(|error| birth_error(BirthError::Exec(error), self.users))?;
                // Another thread may have been faster; its image is as good.
                self.on_disk.get_or_init(|| image)
            }
        };
        sys::give_birth(image.as_fd(), control, self.users).map_err(|error| birth_error(error, self.users))
    }
}

fn birth_error(error: BirthError, users: Users) -> Error {
    let (step, protection, source) = match error {
        BirthError::Clone(source) => {
            let (step, protection) = refused_namespace(&source, users);
            (step, protection, source)
        }
        BirthError::Keep(source) => {
            ("keep what the inside needs to set up", Protection::Capabilities, source)
        }
        BirthError::Exec(source) => return not_executed(source),
    };
    let remedy = remedy::of_birth(protection, &source);
    Error::Step { step: step.to_owned(), protection, source, remedy }
}

/// One clone(2) makes two namespaces; asked for alone, the user namespace says whether it is to blame.
fn refused_namespace(error: &io::Error, users: Users) -> (&'static str, Protection) {
    let may_be_user = users == Users::Own;
    let shortage = error.raw_os_error().is_some_and(remedy::is_shortage);
    if may_be_user && (shortage || sys::try_namespaces(libc::CLONE_NEWUSER).is_err()) {
        return ("new user and pid namespace", Protection::UserNamespace);
    }
    ("new pid namespace", Protection::PidNamespace)
}

fn not_executed(source: io::Error) -> Error {
    let noexec = "allow executing memfds (sysctl -w vm.memfd_noexec=0), or have XDG_RUNTIME_DIR or /tmp on a file system \
                  that is not mounted noexec";
    let remedy = match source.raw_os_error() {
        Some(libc::EACCES) | None => Some(noexec.to_owned()),
        _ => remedy::of_birth(Protection::Capabilities, &source),
    };
    let step = "execute the program of the inside".to_owned();
    Error::Step { step, protection: Protection::Root, source, remedy }
}

/// Starts PID 1 with its first steps. It waits for the plan then.
pub(crate) fn start(images: &Images, shape: Shape, namespaces: &Section) -> Result<Inside, Error> {
    let namespaces = &*namespaces.bytes;
    let role = match shape {
        Shape::OneShot => Role::Alone { namespaces },
        Shape::Session { .. } => Role::Zygote { namespaces },
    };
    start_as(images, &role)
}

/// Starts a bridge with its first steps. It waits for the plan then.
pub(crate) fn start_bridge(images: &Images, namespaces: &Section) -> Result<Inside, Error> {
    start_as(images, &Role::Bridge { namespaces: &namespaces.bytes })
}

fn start_as(images: &Images, role: &Role<'_>) -> Result<Inside, Error> {
    let (ours, theirs) = socket_pair().map_err(Error::io("make the control socket"))?;
    let pidfd = images.give_birth(theirs.as_fd())?;
    drop(theirs);
    let inside = Inside::child(ours, pidfd);
    let mut message = Vec::new();
    role.put(&mut message);
    unless_gone(inside.send(&message, [])).map_err(Error::io("hand over the first steps"))?;
    Ok(inside)
}

/// Hands over the plan; `narrow` are the steps of a one-shot alone.
pub(crate) fn hand_over(
    inside: &mut Inside,
    prepared: &Prepared,
    narrow: Option<&Bytes>,
) -> Result<(), Error> {
    let plan = prepared.plan().map_err(Error::io("hand over the plan"))?;
    inside.watch(&prepared.compiled.watches);
    hand_over_plan(inside, plan, narrow)
}

/// Hands over a plan that is written.
pub(crate) fn hand_over_plan(inside: &Inside, plan: &Bytes, narrow: Option<&Bytes>) -> Result<(), Error> {
    let mut message = Vec::new();
    Handover::Plan { plan: plan.length, narrow: narrow.map_or(0, |narrow| narrow.length) }.put(&mut message);
    unless_gone(inside.send(&message, std::iter::once(plan).chain(narrow).map(AsFd::as_fd)))
        .map_err(Error::io("hand over the plan"))
}

/// Who is gone before a message came has told why. It is read like everything that it tells.
pub(crate) fn unless_gone(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

/// Starts a one-shot, which then waits for its request.
pub(crate) fn start_alone(prepared: &Prepared, narrow: Option<&Bytes>) -> Result<Inside, Error> {
    let mut inside = match prepared.take_begun() {
        Some(inside) => inside,
        None => start(&prepared.images, Shape::OneShot, &prepared.compiled.namespaces)?,
    };
    hand_over(&mut inside, prepared, narrow)?;
    Ok(inside)
}

/// A control socket, our end not blocking.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}
