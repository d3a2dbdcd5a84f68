//! What `kennel image` accepts.

use std::{path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::{
    help,
    values::{self, span},
};

#[derive(Debug, Subcommand)]
pub(crate) enum ImageAction {
    /// Add an image from a file, a directory or stdin.
    ///
    /// What it is shows its content: an archive of docker save or podman save, an OCI layout, an archive of
    /// one, or the files of a root file system in a directory or a tar archive. Any of the archives may be
    /// compressed. Prints the digest, then the name.
    #[command(after_help = help::IMAGE_IMPORT)]
    Import(Import),
    /// Get an image from a registry.
    ///
    /// Names are read as docker reads them: python:3.12 is docker.io/library/python:3.12. Layers that are
    /// here are not fetched. Credentials are those of docker login or podman login. Prints the digest, then
    /// the name.
    #[command(after_help = help::IMAGE_PULL)]
    Pull(Pull),
    /// List the images.
    ///
    /// Shows the name, the digest, the number of layers, the size of the files, and the time since the last
    /// use.
    List(Json),
    /// Show the configuration and the layers of an image.
    Inspect {
        /// The image: NAME[:TAG], or its digest or the beginning of that.
        #[arg(value_name = "IMAGE")]
        image: String,
        #[command(flatten)]
        output: Json,
    },
    /// Remove names, and images without another name.
    ///
    /// Layers that another image or a running sandbox uses stay.
    #[command(after_help = help::IMAGE_REMOVE)]
    Remove {
        /// The images: NAME[:TAG], or a digest, which removes all names of that image.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        #[command(flatten)]
        output: Json,
    },
    /// Remove images without a name, and what nothing uses.
    #[command(after_help = help::IMAGE_PRUNE)]
    Prune {
        /// Also remove images that nothing has used for this long, with their names: 12h, 30d.
        #[arg(long, value_name = "TIME", value_parser = span)]
        unused_for: Option<Duration>,
        #[command(flatten)]
        output: Json,
    },
    /// Show what the images take on the disk.
    Df(Json),
    /// Write an image as an OCI archive, which also docker, podman and skopeo read.
    #[command(after_help = help::IMAGE_EXPORT)]
    Export {
        /// The image: NAME[:TAG], or its digest or the beginning of that.
        #[arg(value_name = "IMAGE")]
        image: String,
        /// The file, which must not be there yet; `-` is stdout.
        #[arg(value_name = "FILE", value_parser = values::path())]
        file: PathBuf,
        #[command(flatten)]
        output: Json,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The archive or the directory; `-` is stdin.
    #[arg(value_name = "FILE", value_parser = values::path())]
    pub(crate) source: PathBuf,
    /// The name of the image, as in python:3.12 [default: what the archive says].
    #[arg(long, value_name = "NAME:TAG")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) output: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// The image: NAME[:TAG], HOST/NAME[:TAG] or NAME@DIGEST.
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) output: Json,
}

/// When `--image` asks the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    /// If the store does not have the image.
    #[default]
    Missing,
    Never,
    /// Also if the name means another image by now.
    Always,
}

const WHEN: [&str; 3] = ["missing", "never", "always"];

#[derive(Debug, Default, Args)]
pub(crate) struct PullFlag {
    /// With an image: get it from its registry if it is missing, never, or always, if the name means another
    /// one by now [default: missing].
    #[arg(long, value_name = "WHEN", value_parser = PossibleValuesParser::new(WHEN).map(|word| when(&word)))]
    pub(crate) pull: Option<When>,
}

fn when(word: &str) -> When {
    match word {
        "never" => When::Never,
        "always" => When::Always,
        _ => When::Missing,
    }
}

/// How an answer is printed.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
