//! The interpreter: a loop and a match. Each step is a function in `mounts` or one call in `sys`.

use core::ffi::CStr;

use crate::{
    Fault,
    channel::Channel,
    control::Report,
    kernel::{E2BIG, EEXIST, EINVAL, ENOENT, EPROTO, MS_BIND, MS_REC, MS_SLAVE, RulesetAttr, SOCK_STREAM},
    mounts,
    plan::{self, Inode, MOST_FORGONE, MOST_LAYERS, MOST_TMPFS, Step, Target},
    sys::{self, Errno, Fd},
};

/// Results of earlier steps that later steps need.
#[derive(Default)]
pub(crate) struct State<'p> {
    root: Option<Fd>,
    ruleset: Option<Fd>,
    /// Paths whose Landlock rules are skipped.
    forgone: [Option<&'p CStr>; MOST_FORGONE],
    /// The layers that could be mounted.
    layers: [Option<Fd>; MOST_LAYERS],
    /// The listener of the seccomp filter, until the command has started.
    pub(crate) listener: Option<Fd>,
    /// Whether init leads the session of a terminal, to which the command belongs.
    pub(crate) has_terminal: bool,
    /// Private file systems to check after the command.
    pub(crate) tmpfs: PrivateTmpfs<'p>,
}

/// Private file systems, by path.
pub(crate) type PrivateTmpfs<'p> = [Option<&'p CStr>; MOST_TMPFS];

impl<'p> State<'p> {
    /// Only the private file systems that earlier steps reported.
    pub(crate) fn with_tmpfs(tmpfs: &PrivateTmpfs<'p>) -> Self {
        Self { tmpfs: *tmpfs, ..Self::default() }
    }

    /// Makes the root of this mount namespace the root of later steps.
    pub(crate) fn enter_root(&mut self) -> Result<(), Errno> {
        self.root = Some(mounts::enter_root()?);
        Ok(())
    }

    fn forgo(&mut self, path: &'p CStr) -> Result<(), Errno> {
        note(&mut self.forgone, path)
    }

    /// Whether `path` is one of the skipped paths, or below one.
    fn forgoes(&self, path: &CStr) -> bool {
        let is_below = |place: &&CStr| match path.to_bytes().strip_prefix(place.to_bytes()) {
            Some(rest) => matches!(rest.first(), None | Some(b'/')),
            None => false,
        };
        self.forgone.iter().flatten().any(is_below)
    }

    fn root(&self) -> Result<&Fd, Errno> {
        self.root.as_ref().ok_or(Errno(EINVAL))
    }

    fn ruleset(&self) -> Result<&Fd, Errno> {
        self.ruleset.as_ref().ok_or(Errno(EINVAL))
    }
}

/// Puts `path` into the first free slot.
fn note<'p>(slots: &mut [Option<&'p CStr>], path: &'p CStr) -> Result<(), Errno> {
    let free = slots.iter_mut().find(|slot| slot.is_none()).ok_or(Errno(E2BIG))?;
    *free = Some(path);
    Ok(())
}

/// Carries out every step of a section, in order. A failing step ends the section unless it is optional; then
/// the outside gets a report of the missing protection.
pub(crate) fn carry_out<'p>(
    bytes: &'p [u8],
    section: u32,
    state: &mut State<'p>,
    channel: &Channel,
) -> Result<(), Fault> {
    for (index, entry) in (0u32..).zip(plan::entries(bytes)) {
        let fault = |errno| Fault { section, index, errno };
        let entry = entry.ok_or(fault(Errno(EPROTO)))?;
        match step(&entry.step, state, channel) {
            Ok(()) => {}
            Err(errno) if entry.optional => {
                let skipped = Report::Skipped { section, index, errno: errno.0 };
                channel.report(&skipped).map_err(fault)?;
            }
            Err(errno) => return Err(fault(errno)),
        }
    }
    Ok(())
}

fn step<'p>(step: &Step<'p>, state: &mut State<'p>, channel: &Channel) -> Result<(), Errno> {
    match *step {
        Step::Write { path, bytes } => sys::write_all(&sys::open_for_writing(path)?, bytes),
        Step::Unshare { flags } => sys::unshare(flags),
        Step::Separate {} => sys::mount(None, c"/", None, MS_REC | MS_SLAVE, None),
        Step::Hostname { name } => sys::set_hostname(name),
        Step::LoopbackUp {} => sys::loopback_up(),
        Step::LoopbackAddress { address } => sys::loopback_address(address),
        Step::NewRoot { options } => {
            state.root = Some(mounts::new_root(options)?);
            Ok(())
        }
        Step::MakeDir { path, mode } => sys::make_dir(state.root()?, path, mode),
        Step::SetMode { path, mode } => sys::set_mode(path, mode),
        Step::Symlink { path, points_to } => sys::symlink(state.root()?, path, points_to),
        Step::MakeFile { path, mode, bytes } => {
            sys::write_all(&sys::create(state.root()?, path, mode)?, bytes)
        }
        Step::Bind { source, device, inode, target, within, attributes } => {
            let source = Inode { path: source, identity: (device, inode) };
            mounts::bind(state.root()?, source, Target { path: target, within }, attributes)
        }
        Step::Cover { empty, target, within } => {
            mounts::cover(state.root()?, empty, Target { path: target, within })
        }
        Step::Mount { kind, target, within, flags, options } => {
            mounts::mount(state.root()?, kind, Target { path: target, within }, flags, options)
        }
        Step::BindOwn { source, target } => sys::mount(Some(source), target, None, MS_BIND, None),
        Step::MakeMountPoint { path } => sys::make_empty_file(state.root()?, path),
        Step::Whiteout { path } => sys::make_whiteout(state.root()?, path),
        Step::Merge { target, options, reader } => mounts::merge(target, options, reader),
        Step::PivotRoot {} => mounts::pivot(state.root()?),
        Step::SetAttributes { target, attributes, recursive } => {
            sys::set_attributes(&sys::open_path(Some(state.root()?), target)?, attributes, recursive != 0)
        }
        Step::LandlockRuleset { fs, net, scoped } => {
            state.ruleset = Some(sys::landlock_ruleset(&RulesetAttr { fs, net, scoped })?);
            Ok(())
        }
        Step::LandlockRule { path, access } => {
            if state.forgoes(path) {
                return Ok(());
            }
            sys::landlock_rule(state.ruleset()?, &sys::open_path(Some(state.root()?), path)?, access)
        }
        Step::LandlockPort { access, port } => sys::landlock_port(state.ruleset()?, access, port),
        Step::LandlockRestrict {} => sys::landlock_restrict(state.ruleset()?),
        Step::Prctl { option, argument } => sys::prctl(option, argument),
        Step::DropCapabilities { but } => sys::drop_capabilities(but),
        Step::DropBoundingSet {} => sys::drop_bounding_set(),
        Step::NewKeyring {} => sys::new_session_keyring(),
        Step::Limit { resource, soft, hard } => sys::limit(resource, soft, hard),
        Step::Seccomp { program } => sys::seccomp(program, 0).map(drop),
        Step::SeccompAsking { program, flags, plain, with_start } => match sys::seccomp(program, flags) {
            Ok(asks) if with_start != 0 => {
                // Out of the way of the command's standard descriptors.
                state.listener = Some(channel.above(&sys::fd(asks))?);
                Ok(())
            }
            Ok(asks) => channel.report_with(&Report::Refusing {}, Some(&sys::fd(asks))),
            Err(_) => sys::seccomp(plain, 0).map(drop),
        },
        Step::NewSession {} if state.has_terminal => sys::new_group(),
        Step::NewSession {} => sys::new_session(),
        Step::MountAgain { from, target, attributes, device, inode } => {
            let target = Inode { path: target, identity: (device, inode) };
            mounts::mount_again(state.root()?, from, target, attributes)
        }
        Step::Forgo { path } => state.forgo(path),
        Step::CheckTmpfs { path } => note(&mut state.tmpfs, path),
        Step::EnterRoot {} => state.enter_root(),
        Step::Move { from, to, within } => mounts::relocate(state.root()?, from, to, within),
        Step::Detach { target } => sys::detach(target),
        Step::Listen { kind, address, port } => {
            let socket = sys::socket_at(kind, address, port)?;
            channel.report_with(&Report::Listening { kind, port }, Some(&socket))
        }
        Step::ListenEverywhere { port } => {
            let socket = sys::listener_everywhere(port)?;
            channel.report_with(&Report::Listening { kind: SOCK_STREAM as u32, port }, Some(&socket))
        }
        Step::HandOutUpper { path, is_root } => {
            channel.report_with(&Report::Upper { is_root }, Some(&sys::open_path(Some(state.root()?), path)?))
        }
        Step::Layer { lower, kept, at, layer } => {
            let slot = state.layers.get_mut(layer as usize).ok_or(Errno(E2BIG))?;
            let root = state.root.as_ref().ok_or(Errno(EINVAL))?;
            *slot = Some(mounts::layer(root, lower, kept, at)?);
            Ok(())
        }
        Step::ShowLayered { layer, below, source, target, within, or_shows } => {
            let from = state.layers.get(layer as usize).and_then(Option::as_ref);
            let target = Target { path: target, within };
            let shown = from
                .ok_or(Errno(ENOENT))
                .and_then(|layer| mounts::show_layered(state.root()?, layer, below, source, target));
            shown.or_else(|errno| {
                mounts::without_layer(state.root()?, source, target, or_shows != 0)?;
                Err(errno)
            })
        }
        Step::DetachLayers {} => {
            let mut layers = state.layers.iter_mut().filter_map(Option::take);
            layers.try_for_each(|layer| mounts::move_to_old_root(&layer))
        }
        Step::Root { layers, options, kept } => {
            state.root = Some(mounts::overlay_root(state.root()?, layers, options, kept)?);
            Ok(())
        }
        Step::MakeMissing { parent, name, mode } => {
            let parent = sys::open_path(Some(state.root()?), parent)?;
            let made = match mode {
                0 => sys::make_empty_file(&parent, name),
                mode => sys::make_dir(&parent, name, mode),
            };
            made.or_else(|errno| if errno.0 == EEXIST { Ok(()) } else { Err(errno) })
        }
        Step::Pin { target, attributes } => mounts::pin(state.root()?, target, attributes),
        Step::Ordinary { policy, nice, io } => sys::make_ordinary(policy != 0, nice != 0, io != 0),
        Step::DropCapability { capability } => sys::drop_capability(capability),
        Step::SetEffective { capability, has } => sys::set_effective(capability, has != 0),
        Step::HandOut {} => {
            channel.report_with(&Report::Root {}, Some(state.root()?))?;
            let mounts = sys::open_for_reading(c"/proc/self/ns/mnt")?;
            channel.report_with(&Report::Mounts {}, Some(&mounts))
        }
    }
}
