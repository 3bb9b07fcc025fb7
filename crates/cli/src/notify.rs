//! Notes to the service manager: the daemon is ready, or has begun to stop (sd_notify(3)).
//!
//! systemd passes a datagram socket in `NOTIFY_SOCKET` to services of `Type=notify`. Without the
//! variable, nothing is sent.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

pub struct Notifier {
    address: Option<OsString>,
}

impl Notifier {
    pub fn from_environment() -> Notifier {
        Notifier { address: std::env::var_os(VARIABLE) }
    }

    /// Reports that the volume is mounted. With `--foreground`, this process is the one that the
    /// service manager started; otherwise it has to learn the daemon's number.
    pub fn ready(&self, status: &str, foreground: bool) {
        let main = match foreground {
            true => String::new(),
            false => format!("\nMAINPID={}", std::process::id()),
        };
        self.send(&format!("READY=1\nSTATUS={}{main}", status.replace('\n', " ")));
    }

    /// Reports that the volume is unmounted, and that closing it may take a while.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=closing the volume");
    }

    /// A service manager that cannot be reached decides on its own what that means.
    fn send(&self, text: &str) {
        if let Some(address) = &self.address
            && let Err(e) = send_to(address, text)
        {
            tracing::warn!("cannot notify the service manager at {}: {e}", address.to_string_lossy());
        }
    }
}

/// `address`: an absolute path, or `@` and a name in the abstract namespace.
fn send_to(address: &OsStr, text: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(address: &OsStr, socket: &UnixDatagram) -> String {
        let notifier = Notifier { address: Some(address.to_owned()) };
        notifier.ready("disk.img\non /mnt", true);
        notifier.ready("", false);
        notifier.stopping();
        let mut text = String::new();
        for _ in 0..3 {
            let mut buffer = [0; 1000];
            let len = socket.recv(&mut buffer).unwrap();
            text += &format!("{}|", str::from_utf8(&buffer[..len]).unwrap());
        }
        text
    }

    #[test]
    fn the_service_manager_receives_datagrams() {
        let pid = std::process::id();
        let expected = format!(
            "READY=1\nSTATUS=disk.img on /mnt|READY=1\nSTATUS=\nMAINPID={pid}|STOPPING=1\nSTATUS=closing the volume|"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        assert_eq!(received(path.as_os_str(), &UnixDatagram::bind(&path).unwrap()), expected);
        let name = format!("xact-notify-test-{pid}");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        assert_eq!(received(OsStr::new(&format!("@{name}")), &socket), expected);
    }

    #[test]
    fn a_wrong_address_is_an_error() {
        for wrong in ["", "relative", "/no/such/socket"] {
            assert!(send_to(OsStr::new(wrong), "READY=1").is_err(), "{wrong}");
        }
    }
}
