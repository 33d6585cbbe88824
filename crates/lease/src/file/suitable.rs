//! Which file systems can keep leases.
//!
//! On a network file system a lock that can be had proves nothing about a holder on another machine,
//! a boot clock means nothing there, and a rename whose answer got lost is sent again. Behind FUSE
//! there may be one.

use std::fs::File;
use std::path::Path;

use super::trouble;
use crate::backend::{StoreError, StoreErrorKind};

/// Refuses a directory that is not on a file system of this machine.
pub(super) fn check(directory: &Path) -> Result<(), StoreError> {
    let failed = |error| trouble::failed("open", directory, &error);
    let file = File::open(directory).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_dir() {
        return Err(trouble::failed(
            "use",
            directory,
            &std::io::Error::from_raw_os_error(libc::ENOTDIR),
        ));
    }
    #[cfg(target_os = "linux")]
    if let Some(name) = remote(super::sys::file_system(&file).map_err(failed)?) {
        return Err(refusal(directory, name));
    }
    Ok(())
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn refusal(directory: &Path, name: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsuitable,
        format!(
            "{} is on a network file system ({name}): locks and clocks there prove nothing across \
             machines; use a local directory for the processes of one machine, or a store that all \
             machines reach: etcd://, k8s://, postgres://, consul://, dynamodb://, …",
            directory.display()
        ),
    )
}

/// The name of a file system that is, or may be, shared between machines.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn remote(magic: u32) -> Option<&'static str> {
    REMOTE.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

const REMOTE: [(u32, &str); 24] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x6573_5546, "fuse"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x564c, "ncp"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x0131_11a8, "ibrix"),
    (0x2003_0528, "orangefs"),
    (0x1983_0326, "beegfs"),
    (0xaad7_aaea, "panfs"),
    (0xbeef_dead, "snfs"),
    (0x6163_6673, "acfs"),
    (0xbacb_acbc, "vmhgfs"),
    (0x786f_4256, "vboxsf"),
    (0x7c7c_6673, "prl_fs"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused() {
        for (magic, name) in [
            (0x6969, "nfs"),
            (0xff53_4d42, "cifs"),
            (0xfe53_4d42, "smb2"),
            (0x0102_1997, "9p"),
            (0x6573_5546, "fuse"),
            (0x00c3_6400, "ceph"),
        ] {
            assert_eq!(remote(magic), Some(name));
        }
        let text = refusal(Path::new("/mnt/x"), "nfs").to_string();
        assert!(text.contains("/mnt/x") && text.contains("nfs") && text.contains("etcd://"));
    }

    #[test]
    fn local_file_systems_are_not() {
        // ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs, bcachefs, fat.
        for magic in [
            0xef53,
            0x5846_5342,
            0x9123_683e,
            0x0102_1994,
            0x794c_7630,
            0x2fc1_2fc1,
            0xf2f5_2010,
            0xca45_1a4e,
            0x4d44,
        ] {
            assert_eq!(remote(magic), None, "{magic:x}");
        }
        check(&std::env::temp_dir()).unwrap();
    }
}
