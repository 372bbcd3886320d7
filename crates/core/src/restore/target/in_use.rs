//! Whether another process has a file open.
//!
//! Its locks tell, and a lease, which the kernel grants only on a file that nobody else has open. What
//! neither tells:
//! - a file that a server does not have open at the moment, such as a MyISAM table that nobody uses;
//! - a process on another host of a network filesystem;
//! - anything, except for locks, where there are no leases: for files of other users unless we are root, and
//!   on filesystems that do not have any, or that another program answers for. NFS and CIFS grant them only
//!   if their server has handed the file over, and otherwise say the same as if it were open: they are not
//!   asked.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use rustix::{
    fs::{OFlags, fstatfs},
    io::Errno,
    process::{FlockType, fcntl_getlk},
};

/// `F_SETSIG`, which `libc` lacks.
const F_SETSIG: libc::c_int = 10;

/// Types of filesystems whose refusal of a lease says nothing: NFS, CIFS, SMB2, FUSE, 9p and Ceph.
const WITHOUT_LEASES: [u32; 6] = [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x6573_5546, 0x0102_1997, 0x00C3_6400];

/// Whether another process is known to have the file at `path` open. Gives up all locks that we hold on it.
pub(in crate::restore) fn is_open_elsewhere(path: &Path) -> io::Result<bool> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) => {
            return match Errno::from_io_error(&error) {
                // Another process has a lease on it.
                Some(Errno::AGAIN) => Ok(true),
                Some(Errno::NOENT | Errno::ACCESS | Errno::LOOP) => Ok(false),
                _ => Err(error),
            };
        }
    };
    let is_locked = || Ok::<_, io::Error>(fcntl_getlk(&file, &FlockType::WriteLock.into())?.is_some());
    Ok(file.metadata()?.is_file() && (is_locked()? || has_leases(&file)? && is_lease_refused(&file)))
}

fn has_leases(file: &File) -> io::Result<bool> {
    // A type has 32 bits.
    let kind = fstatfs(file)?.f_type as u32;
    Ok(!WITHOUT_LEASES.contains(&kind))
}

/// Whether the kernel refuses a lease because the file is open elsewhere.
#[allow(unsafe_code)]
fn is_lease_refused(file: &File) -> bool {
    let fcntl = |command: libc::c_int, number: libc::c_int| {
        // SAFETY: the descriptor is open, and these commands take a number.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, number) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // Who opens the file while we have the lease makes the kernel send us a signal. The usual one would end
    // us; this one does nothing.
    let lease = || {
        fcntl(F_SETSIG, libc::SIGURG)?;
        fcntl(libc::F_SETLEASE, libc::F_WRLCK)?;
        fcntl(libc::F_SETLEASE, libc::F_UNLCK)
    };
    lease().is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_open_file_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.MYD");
        assert!(!is_open_elsewhere(&path).unwrap());
        fs::write(&path, "rows").unwrap();
        assert!(!is_open_elsewhere(&path).unwrap());
        for writes in [false, true] {
            let open = OpenOptions::new().read(true).write(writes).open(&path).unwrap();
            assert!(is_open_elsewhere(&path).unwrap(), "open for writing: {writes}");
            drop(open);
            assert!(!is_open_elsewhere(&path).unwrap());
        }
        assert!(!is_open_elsewhere(dir.path()).unwrap());
    }
}
