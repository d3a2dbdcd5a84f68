//! Remedies in the words of the command line: its flags and its commands.

use kennel::report::{
    Setting,
    SettingKey::{self, *},
    Wording,
};

/// Names settings by flags.
pub(crate) const FLAGS: Wording = Wording::new(flags);

/// The flags for settings that belong together.
pub(crate) fn flags(settings: &[Setting]) -> String {
    settings.iter().map(flag).collect::<Vec<_>>().join(" ")
}

fn flag(setting: &Setting) -> String {
    let Setting { key, value, .. } = setting;
    match (value, words(*key)) {
        (None, _) if *key == SetEnv => {
            "--setenv of kennel run or session start, or env.set in the policy".to_owned()
        }
        (Some(_), _) if *key == Credentials => {
            "the call's credential resolver; kennel connector run takes it from the environment variable of that name \
             or --credential"
                .to_owned()
        }
        (Some(value), words) => format!("{words} {}", quoted(*key, value)),
        (None, words) => words.to_owned(),
    }
}

/// The flag or the command.
fn words(key: SettingKey) -> &'static str {
    match key {
        Profile => "--profile",
        Image => "--image",
        ImageUpper => "--image-upper",
        Root => "--root",
        User => "--user",
        Workspace => "--workspace",
        Ro => "--ro",
        Rw => "--rw",
        Tmpfs => "--tmpfs",
        Git => "--git",
        Cwd => "--cwd",
        Hostname => "--hostname",
        Caches => "--caches",
        OnUnavailable => "--on-unavailable",
        NetworkMode => "--net",
        Allow => "--allow",
        Deny => "--deny",
        AllowAddress => "--allow-address",
        Upstream => "--upstream",
        PassEnv => "--pass-env",
        SetEnv => "--setenv",
        Memory => "--memory",
        Pids => "--pids",
        CpuTime => "--cpu-time",
        Timeout => "--timeout",
        Output => "--max-output",
        TmpSize => "--tmp-size",
        TmpInodes => "--tmp-inodes",
        Cgroup => "--cgroup",
        Overlay => "--overlay",
        OverlayUpper => "--overlay-upper",
        Learn => "--learn",
        Program => "--program",
        Credentials => {
            "the credential resolver; kennel op takes it from the environment variable or --credential"
        }
        Discard => "--discard",
        AsOwner => "--as-owner",
        StartSession => "kennel session start --name",
        StopSession => "kennel session stop",
        ListSessions => "kennel session list",
        Exec => "kennel exec",
        DropChanges => "kennel discard --workspace",
        ListCaches => "`kennel cache list`",
        CheckConnector => "kennel connector check",
    }
}

/// A value as a shell takes it. A rule may hold `*`, and a path may hold anything.
fn quoted(key: SettingKey, value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    let is_safe = match key {
        Workspace | Ro | Rw | Cwd => value.chars().all(is_plain),
        Allow | Deny => !value.contains('*'),
        _ => true,
    };
    if is_safe { value.to_owned() } else { format!("'{}'", value.replace('\'', "?")) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    /// What the parser knows of a command's flags.
    fn is_flag(verb: &[&str], flag: &str) -> bool {
        let mut command = Arguments::command();
        for name in verb {
            command = command.find_subcommand(name).expect("a command").clone();
        }
        command.get_arguments().any(|argument| argument.get_long() == flag.strip_prefix("--"))
    }

    #[test]
    fn each_setting_is_a_flag_or_a_command() {
        for key in SettingKey::ALL {
            match words(key) {
                // The connectors need a feature.
                "--program" => {}
                flag if flag.starts_with("--") => assert!(is_flag(&["run"], flag), "{key}: {flag}"),
                command => assert!(command.contains("kennel "), "{key}: {command}"),
            }
        }
    }

    #[test]
    fn what_a_shell_would_read_is_quoted() {
        for (key, value, words) in [
            (Rw, "/a/b:/c", "--rw /a/b:/c"),
            (Ro, "/a b/it's", "--ro '/a b/it?s'"),
            (Allow, "*:443", "--allow '*:443'"),
            (Allow, "[2001:db8::1]:443", "--allow [2001:db8::1]:443"),
        ] {
            assert_eq!(flag(&of(key, Some(value))), words);
        }
        let both = [of(NetworkMode, Some("proxy")), of(Allow, Some("a:1"))];
        assert_eq!(flags(&both), "--net proxy --allow a:1");
    }

    fn of(key: SettingKey, value: Option<&str>) -> Setting {
        serde_json::from_value(serde_json::json!({"set": key, "value": value})).expect("a setting")
    }
}
