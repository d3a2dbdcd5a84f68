//! Machines that are laid out otherwise: links in the root, homes elsewhere, stores of Nix, Homebrew's
//! prefix.

use std::{path::Path, process::Command};

use crate::support::{has, kennel_path, only_as_root, require, stderr, stdout, workspace};

/// Makes a root of its own with the host's programs, adds a layout, and runs a script there as the user 1000.
/// The user can call `kennel run FLAGS -- …` as `k FLAGS -- …`.
const MACHINE: &str = r#"
mount -t tmpfs -o mode=755 none "$1"; cd "$1"
mkdir usr etc dev proc sys run tmp var old; chmod 1777 tmp
for d in /usr/*; do
    case $d in /usr/local) continue; esac
    if [ -L $d ]; then cp -P $d usr; elif [ -d $d ]; then mkdir .$d; mount --rbind $d .$d; fi
done
for d in /bin /sbin /lib*; do if [ -L $d ]; then cp -P $d .; else mkdir .$d; mount --rbind $d .$d; fi; done
for d in etc dev proc sys; do mount --rbind /$d $d; done
cp "$2" run/kennel
eval "$3"
printf 'k() { /run/kennel run -q "$@"; }\n%s\n' "$4" > run/script
pivot_root . old; cd /; umount -l old; rmdir old
program() { mkdir -p "$1/bin" "$1/share"; echo data > "$1/share/data"; printf '#!/bin/sh\ncat %s\n' "$1/share/data" > "$1/bin/$2"; chmod +x "$1/bin/$2"; }
own() { mkdir -p "$@"; chown -R 1000:1000 "$@"; }
eval "$5"
exec setpriv --reuid 1000 --regid 1000 --clear-groups env -i LC_ALL=C PATH=/usr/bin:/bin sh /run/script
"#;

/// What the script prints on a machine. `links` runs in the root before anything else is there, `layout` when
/// it is the root.
fn on_machine(links: &str, layout: &str, script: &str) -> String {
    let root = workspace();
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-ec", MACHINE, "sh"])
        .args([root.path(), &kennel_path(), Path::new(links), Path::new(script), Path::new(layout)])
        .output()
        .unwrap();
    assert!(stderr(&output).is_empty(), "{output:?}");
    stdout(&output)
}

/// Ends the test where no such machine can be made.
macro_rules! require_machine {
    () => {
        only_as_root!();
        require!(has("unshare") && has("setpriv") && has("pivot_root"), "unshare of util-linux");
    };
}

/// As Fedora Silverblue.
#[test]
fn links_of_an_ostree_system_are_followed() {
    require_machine!();
    let links = "mkdir -p var/home var/opt var/roothome var/srv var/usrlocal; ln -s var/home home; ln -s var/opt opt; \
                 ln -s var/roothome root; ln -s var/srv srv; ln -s ../var/usrlocal usr/local";
    let layout = "own /home/me/ws /home/me/.ssh; echo key > /home/me/.ssh/id; program /opt/tool tool; \
                  program /usr/local loc; program /home/me/own mine; ln -s /home/me/own/bin/mine /usr/local/bin/also";
    let script = "export HOME=/home/me PATH=/opt/tool/bin:/usr/local/bin:/home/me/own/bin:$PATH; cd /home/me/ws
        k -- sh -c 'pwd; tool; loc; mine; also; readlink /home /opt; ls -A ~ /var/home/me; touch ~/x f; ls /home/me/ws'
        k --ro /home/me/.ssh -- cat /var/home/me/.ssh/id /home/me/.ssh/id
        k --ro /etc/shells:/opt/other/in -- ls /var/opt/other
        k --mask /home/me/own/share -- sh -c 'ls -A ~/own/share; tool'
        k --profile full-dev -- sh -c 'tool; loc; mine; ls -A ~/.ssh; touch /home/me/ws/g'
        k --toolchains none -- ls -A /home/me
        ls";
    let said = on_machine(links, layout, script);
    let expected = "/var/home/me/ws data data data data var/home var/opt \
                    /home/me: own ws /var/home/me: own ws f \
                    key key in data data data data ws f g";
    assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn a_home_elsewhere_or_behind_a_link_works() {
    require_machine!();
    for (home, layout) in [
        ("/srv/people/x", "own /srv/people/x/ws"),
        ("/home/x", "own /data/people/x/ws; mkdir /home; ln -s ../data/people/x /home/x"),
        ("/home/x", "own /data/x/ws; mkdir /home /mnt; ln -s /mnt/all/x /home/x; ln -s ../data /mnt/all"),
    ] {
        let layout = format!("{layout}; program {home}/own mine; own {home}/.ssh; echo key > {home}/.ssh/id");
        let script = format!(
            "export HOME={home} PATH={home}/own/bin:$PATH; cd {home}/ws
            k -- sh -c 'mine; touch f ~/x; ls -A $HOME; cat ~/.ssh/id 2>&1 | grep -c key'; cd ..; k -- sh -c 'mine; ls -A .ssh; touch ws/g'; ls ws"
        );
        let said = on_machine("mkdir srv", &layout, &script);
        assert_eq!(
            said.split_whitespace().collect::<Vec<_>>().join(" "),
            "data own ws x 0 data f g",
            "{home}"
        );
    }
}

#[test]
fn a_workspace_below_a_directory_that_may_only_be_traversed_works() {
    require_machine!();
    let layout = "own /closed/deep/ws /home/me; chown 0:0 /closed/deep; chmod 711 /closed /closed/deep; \
                  mount -t tmpfs none /closed/deep/ws; own /closed/deep/ws; program /closed/tool tool";
    let script = "export HOME=/home/me PATH=/closed/tool/bin:$PATH; cd /closed/deep/ws
        k -- sh -c 'tool; touch f; pwd'; ls; git init -q . 2>&1; k -- sh -c 'touch .git/hooks/x 2>/dev/null || echo protected'";
    let said = on_machine("mkdir home", layout, script);
    assert_eq!(said, "data\n/closed/deep/ws\nf\nprotected");
}

#[test]
fn profiles_of_nix_work_by_their_names() {
    require_machine!();
    let layout = "own /home/me/ws; program /nix/store/1-tool tool; program /nix/store/2-sys sys; \
                  mkdir -p /nix/store/3-env/bin /nix/store/4-nixos /nix/var/nix/profiles/per-user/me; \
                  ln -s /nix/store/1-tool/bin/tool /nix/store/3-env/bin/tool; ln -s /nix/store/2-sys /nix/store/4-nixos/sw; \
                  ln -s /nix/store/4-nixos /run/current-system; \
                  ln -s /nix/store/3-env /nix/var/nix/profiles/per-user/me/profile-7-link; \
                  ln -s profile-7-link /nix/var/nix/profiles/per-user/me/profile; \
                  ln -s /nix/var/nix/profiles/per-user/me/profile /home/me/.nix-profile";
    let script = "export HOME=/home/me PATH=/home/me/.nix-profile/bin:/run/current-system/sw/bin:$PATH; cd ~/ws
        export NIX_PROFILES='/run/current-system/sw /home/me/.nix-profile'
        k -- sh -c 'tool; sys; command -v tool; command -v sys; readlink ~/.nix-profile /run/current-system; echo $NIX_PROFILES; ls /nix/store'";
    let said = on_machine("mkdir home", layout, script);
    let expected = "data\ndata\n/home/me/.nix-profile/bin/tool\n/run/current-system/sw/bin/sys\n\
                    /nix/var/nix/profiles/per-user/me/profile\n/nix/store/4-nixos\n\
                    /run/current-system/sw /home/me/.nix-profile\n1-tool\n2-sys\n3-env\n4-nixos";
    assert_eq!(said, expected);
}

#[test]
fn prefixes_of_linuxbrew_and_fnm_work() {
    require_machine!();
    let layout = "own /home/me/ws; program /home/linuxbrew/.linuxbrew/Cellar/x/1 x; mkdir /home/linuxbrew/.linuxbrew/bin; \
                  ln -s ../Cellar/x/1/bin/x /home/linuxbrew/.linuxbrew/bin/x; chown -R 999:999 /home/linuxbrew; \
                  program /home/me/.local/share/fnm/node-versions/v20/installation node; \
                  own /home/me/.local /run/user/1000/fnm_multishells; \
                  ln -s /home/me/.local/share/fnm/node-versions/v20/installation /run/user/1000/fnm_multishells/1_2";
    let script = "export HOME=/home/me PATH=/home/linuxbrew/.linuxbrew/bin:/run/user/1000/fnm_multishells/1_2/bin:$PATH
        cd ~/ws; k -- sh -c 'x; node; command -v node; ls /home'";
    let said = on_machine("mkdir home", layout, script);
    assert_eq!(said, "data\ndata\n/run/user/1000/fnm_multishells/1_2/bin/node\nlinuxbrew\nme");
}
