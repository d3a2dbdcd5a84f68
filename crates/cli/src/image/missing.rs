//! An image that a command needs: if the store lacks it, `kennel image pull` gets it, in an executable of its
//! own. So `kennel run` carries no TLS.

use std::process::Stdio;

use kennel::{
    Error, Policy,
    image::{Reference, Store},
};

use crate::{
    args::image::{PullFlag, When},
    process::beside,
};

/// Gets the image of a policy from its registry, if that is wanted.
///
/// # Errors
/// The pull fails, which has said why.
pub(crate) fn pull(policy: &Policy, flag: &PullFlag) -> Result<(), Error> {
    let Some(text) = &policy.image else { return Ok(()) };
    let name: Reference = text.parse()?;
    let is_wanted = match flag.pull.unwrap_or_default() {
        When::Never => false,
        // Digests of images are none of a registry.
        _ if name.repository().is_none() => false,
        When::Always => true,
        When::Missing => Store::open_default()?.find(&name)?.is_none(),
    };
    if !is_wanted {
        return Ok(());
    }
    let mut command = beside::command(&beside::IMAGE)?;
    // stdout is that of the command which is to run.
    command.args(["image", "pull", "--"]).arg(text).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().map_err(|source| Error::Io { what: "execute kennel-image", source })?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Command {
            what: "image",
            value: text.clone(),
            reason: "it could not be pulled".to_owned(),
        }),
    }
}
