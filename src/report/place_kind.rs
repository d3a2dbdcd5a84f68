//! What a place of a sandbox is.

use crate::report::words::words;

words! {
    /// What a file or directory is that a sandbox shows or hides, in the words of reports.
    ///
    /// ```
    /// use kennel::report::PlaceKind;
    ///
    /// assert_eq!(PlaceKind::ReadOnlyGrant.to_string(), "read-only grant");
    /// ```
    #[non_exhaustive]
    pub enum PlaceKind {
        /// The workspace.
        Workspace = "workspace",
        /// What the policy grants for reading.
        ReadOnlyGrant = "read-only grant",
        /// What the policy grants for reading and writing.
        ReadWriteGrant = "read-write grant",
        /// A device node.
        Device = "device",
        /// An own file system in memory, of the policy.
        Tmpfs = "tmpfs",
        /// A file that Kennel or the policy writes.
        File = "file",
        /// A symbolic link.
        Link = "link",
        /// An instance of proc(5), of the policy.
        Procfs = "procfs",
        /// What the policy hides.
        Mask = "mask",
        /// The only program that may run.
        Program = "program",
        /// The directory of a git repository that is not in the workspace.
        Repository = "repository",
        /// A git repository that may have worktrees in it.
        CommonRepository = "common repository",
        /// Files of a git repository around the workspace.
        WorkTree = "work tree",
        /// What the policy or the profile keeps from changes.
        ProtectedPath = "protected path",
        /// What git outside runs or reads as settings.
        ObeyedByGit = "path that git obeys",
        /// A known place of credentials.
        Secret = "secret",
        /// A file of the kernel about the whole host.
        KernelFile = "kernel file",
        /// A mount of /proc or /sys inside of what is shown.
        KernelFileSystem = "kernel file system",
        /// The files that lead to the sandbox's own name server.
        NameServer = "name server",
        /// A root file system that is not the host's.
        Root = "root",
        /// Programs, libraries and settings of the host.
        System = "system",
        /// A directory that only leads to other places.
        Directory = "directory",
        /// An empty directory of the sandbox's own.
        PrivateDirectory = "private directory",
        /// The processes of the sandbox: proc(5).
        Processes = "processes",
        /// The terminals of the sandbox: pts(4).
        Terminals = "terminals",
        /// Certificates that a variable of the caller names.
        Certificates = "certificates",
        /// A file system that is mounted below /etc.
        HostMount = "mount of the host",
        /// A file that tells which host this is.
        HostFile = "file about the host",
        /// Programs of a home.
        Toolchain = "toolchain",
        /// What tools download and compile.
        Cache = "cache",
        /// What else of the host `learn` shows.
        ShownToLearn = "shown to learn",
        /// A directory above a place that must not be renamed.
        Pin = "directory on the way to a wall",
        /// Entries of terminfo(5) of a home.
        TerminalDescriptions = "terminal descriptions",
    }
}
