//! The one start: the inside born, and while it boots and makes its namespaces, the plan handed over. Blocks its thread
//! for about as long as posix_spawn(3) would.

use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::OnceLock;
use std::{env, io};

use kennel_helper::control::{Handover, Role};
use kennel_helper::wire::Field;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::host::remedy;
use crate::launch::cgroup::leaf::Leaf;
use crate::launch::inside::{Inside, unless_gone};
use crate::launch::prepared::{Bytes, Prepared};
use crate::plan::Section;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::overlay_error::OverlayError;
use crate::report::shortage;
use crate::sys::birth::{BirthError, Born, Placement, SpawnOptions, Users};
use crate::sys::dirfd::own_path;
use crate::sys::{birth, without_sigxfsz};
use crate::view::inputs::SandboxKind;

/// The inside's image, made once for a sandbox; the one on disk only where memfds may not be executed.
#[derive(Debug)]
pub(crate) struct Images {
    options: SpawnOptions,
    sealed: Option<Image>,
    on_disk: OnceLock<Image>,
}

impl Images {
    pub(crate) fn new(options: SpawnOptions) -> Result<Self, Error> {
        let sealed = match Image::sealed() {
            // vm.memfd_noexec=2 refuses to make one at all.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            sealed => Some(sealed.map_err(Error::io("create a memfd for the program of the inside"))?),
        };
        Ok(Self { options, sealed, on_disk: OnceLock::new() })
    }

    /// Starts the inside, in a cgroup where there is one for it.
    fn spawn_inside(&self, control: BorrowedFd<'_>, placement: Placement<'_>) -> Result<Born, Error> {
        if let Some(sealed) = self.sealed.as_ref().filter(|_| self.on_disk.get().is_none()) {
            match birth::spawn_inside(sealed.as_fd(), control, self.options, placement) {
                // An older kernel with that setting, or a security module, refuses to execute it.
                Err(BirthError::Exec(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
                born => return born.map_err(|error| birth_error(error, self.options.users)),
            }
        }
        let image = match self.on_disk.get() {
            Some(image) => image,
            None => {
                let image = Image::on_disk()
                    .map_err(|error| birth_error(BirthError::Exec(error), self.options.users))?;
                // Another thread may have been faster; its image is as good.
                self.on_disk.get_or_init(|| image)
            }
        };
        birth::spawn_inside(image.as_fd(), control, self.options, placement)
            .map_err(|error| birth_error(error, self.options.users))
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
    let shortage = error.raw_os_error().is_some_and(shortage::is_shortage);
    if may_be_user && (shortage || birth::try_namespaces(libc::CLONE_NEWUSER).is_err()) {
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

/// Starts PID 1 with its first steps, in the cgroup that is its own, if any. It waits for the plan then.
pub(crate) fn start(
    images: &Images,
    shape: SandboxKind,
    namespaces: &Section,
    leaf: Option<Leaf>,
) -> Result<Inside, Error> {
    let namespaces = &*namespaces.bytes;
    let role = match shape {
        SandboxKind::Once | SandboxKind::OneShot => Role::OneShot { namespaces },
        SandboxKind::Session { .. } => Role::Zygote { namespaces },
    };
    let placement = leaf.as_ref().map_or(Placement::Namespaces, |leaf| Placement::Group(leaf.as_fd()));
    let (mut inside, born) = start_in(images, placement)?;
    if let Some(leaf) = leaf.as_ref().filter(|_| !born.1) {
        // Before its first steps: one of them has the cgroup that it lies in shown as the root.
        leaf.take_in(born.0)?;
    }
    first_steps(&inside, &role, None)?;
    inside.lies_in(leaf);
    Ok(inside)
}

/// Starts a bridge with its first steps. It waits for the plan then.
pub(crate) fn start_bridge(images: &Images, namespaces: &Section) -> Result<Inside, Error> {
    let (inside, _) = start_in(images, Placement::Namespaces)?;
    first_steps(&inside, &Role::Bridge { namespaces: &namespaces.bytes }, None)?;
    Ok(inside)
}

/// Starts a reaper for the cgroup `name` in `directory`. Answers its control socket, at whose end it acts, and its pidfd.
pub(crate) fn start_reaper(
    images: &Images,
    steps: &Section,
    name: &str,
    directory: BorrowedFd<'_>,
) -> Result<(OwnedFd, OwnedFd), Error> {
    let name = CString::new(name).map_err(|error| Error::io("name a cgroup")(error.into()))?;
    let role = Role::Reaper { namespaces: &steps.bytes, name: &name };
    let (reaper, _) = start_in(images, Placement::Beside)?;
    first_steps(&reaper, &role, Some(directory))?;
    reaper.into_parts().map_err(Error::io("keep hold of a reaper"))
}

/// Starts the inside; answers its pid too, and whether it lies in its group.
fn start_in(images: &Images, placement: Placement<'_>) -> Result<(Inside, (i32, bool)), Error> {
    let (ours, theirs) = socket_pair().map_err(Error::io("make the control socket"))?;
    let born = images.spawn_inside(theirs.as_fd(), placement)?;
    Ok((Inside::child(ours, born.pidfd), (born.pid, born.is_in_group)))
}

fn first_steps(inside: &Inside, role: &Role<'_>, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let mut message = Vec::new();
    role.put(&mut message);
    unless_gone(inside.send(&message, descriptor)).map_err(Error::io("hand over the first steps"))
}

/// Hands over the plan; `narrow` are the steps of a one-shot alone.
pub(crate) fn hand_over(inside: &Inside, prepared: &Prepared, narrow: Option<&Bytes>) -> Result<(), Error> {
    let plan = prepared.plan().map_err(Error::io("hand over the plan"))?;
    hand_over_plan(inside, plan, narrow)
}

/// Hands over a plan that is written.
pub(crate) fn hand_over_plan(inside: &Inside, plan: &Bytes, narrow: Option<&Bytes>) -> Result<(), Error> {
    let mut message = Vec::new();
    Handover::Plan { plan: plan.length, narrow: narrow.map_or(0, |narrow| narrow.length) }.put(&mut message);
    unless_gone(inside.send(&message, std::iter::once(plan).chain(narrow).map(AsFd::as_fd)))
        .map_err(Error::io("hand over the plan"))
}

/// Starts a one-shot, which then waits for its request.
pub(crate) fn start_one_shot(prepared: &Prepared, narrow: Option<&Bytes>) -> Result<Inside, Error> {
    unless_for_session(prepared)?;
    // What has its plan takes no other steps.
    let mut inside = match prepared.take_begun().filter(|_| narrow.is_none()) {
        Some(inside) => inside,
        None => {
            let leaf = prepared.groups()?.map(|groups| groups.only_leaf()).transpose()?;
            let mut inside =
                start(&prepared.images, SandboxKind::OneShot, &prepared.compiled.namespaces, leaf)?;
            hand_over_one_shot(&mut inside, prepared, narrow)?;
            inside
        }
    };
    inside.watch(&prepared.compiled.watches);
    Ok(inside)
}

/// Hands over the plan of a one-shot.
pub(crate) fn hand_over_one_shot(
    inside: &mut Inside,
    prepared: &Prepared,
    narrow: Option<&Bytes>,
) -> Result<(), Error> {
    inside.stands_on(prepared.compiled.one_shot_mounts.now());
    hand_over(inside, prepared, narrow)
}

/// # Errors
/// An overlay whose changes outlive a one-shot.
pub(crate) fn unless_for_session(prepared: &Prepared) -> Result<(), Error> {
    match &prepared.compiled.overlay {
        Some(overlay) if overlay.upper.is_some() => Err(OverlayError::NeedsSession.into()),
        _ => Ok(()),
    }
}

/// A control socket, our end not blocking.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

// The inside as an open, executable descriptor: a sealed memfd, or an unlinked file where memfds may not be
// executed. Nothing of it ever has a name that somebody else could replace.

/// `MFD_EXEC` of memfd_create(2): executable even where `vm.memfd_noexec` is 1. Linux 6.3.
const MFD_EXEC: u32 = 0x10;

/// The executable image of the inside.
#[derive(Debug)]
pub(crate) struct Image(OwnedFd);

impl Image {
    /// The image in a memfd that nobody can change any more.
    pub(crate) fn sealed() -> io::Result<Self> {
        let base = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = match memfd_create(c"kennel-inside", base | MFdFlags::from_bits_retain(MFD_EXEC)) {
            Err(Errno::EINVAL) => memfd_create(c"kennel-inside", base)?,
            created => created?,
        };
        let mut file = File::from(memfd);
        without_sigxfsz(|| file.write_all(kennel_helper::IMAGE))?;
        let seals =
            SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(file.into()))
    }

    /// The image in an unlinked file, for hosts where executing a memfd is refused (`vm.memfd_noexec=2`).
    ///
    /// # Errors
    /// The last directory's error, when none lets a file be executed.
    pub(crate) fn on_disk() -> io::Result<Self> {
        let runtime = env::var_os("XDG_RUNTIME_DIR");
        let places =
            runtime.iter().map(AsRef::as_ref).chain(["/dev/shm", "/tmp", "/var/tmp"].map(AsRef::as_ref));
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match Self::unlinked_in(place) {
                Ok(image) => return Ok(image),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn unlinked_in(place: &std::path::Path) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o500).open(place)?;
        without_sigxfsz(|| file.write_all(kennel_helper::IMAGE))?;
        file.set_permissions(Permissions::from_mode(0o500))?;
        // A file that is open for writing cannot be executed (ETXTBSY).
        let readable = File::open(own_path(&file))?;
        let flags = nix::sys::statvfs::fstatvfs(&readable)?.flags();
        if flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC) {
            return Err(Errno::EACCES.into());
        }
        Ok(Self(readable.into()))
    }
}

impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
