//! Single keys, without a line's end, if there is somebody at a terminal.
#![allow(clippy::disallowed_methods, reason = "a thread waits for keys")]
#![allow(unsafe_code, reason = "the standard library knows no terminals")]

use std::io::{self, IsTerminal as _, Read as _};

use tokio::sync::mpsc;

/// The keyboard; as it was before, when dropped.
pub(super) struct Keys {
    before: Option<libc::termios>,
    pressed: mpsc::Receiver<u8>,
}

impl Keys {
    /// Listens for keys; without a terminal none ever comes.
    pub(super) fn new() -> io::Result<Self> {
        let (sender, pressed) = mpsc::channel(16);
        if !io::stdin().is_terminal() {
            return Ok(Self { before: None, pressed });
        }
        let before = settings()?;
        let mut raw = before;
        // Signals stay: ^C ends the demonstration.
        raw.c_lflag &= !(libc::ICANON | libc::ECHO);
        set(&raw)?;
        std::thread::spawn(move || {
            let mut key = [0];
            while let Ok(1) = io::stdin().read(&mut key)
                && sender.blocking_send(key[0]).is_ok()
            {}
        });
        Ok(Self { before: Some(before), pressed })
    }

    /// Whether there is anybody who could press one.
    pub(super) fn are_there(&self) -> bool {
        self.before.is_some()
    }

    /// The next key. Cancel-safe.
    pub(super) async fn next(&mut self) -> u8 {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Nothing better could be done about it.
            let _ = set(before);
        }
    }
}

fn settings() -> io::Result<libc::termios> {
    let mut settings = std::mem::MaybeUninit::uninit();
    // SAFETY: the place is writable, and large enough.
    if unsafe { libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: tcgetattr has filled it.
    Ok(unsafe { settings.assume_init() })
}

fn set(settings: &libc::termios) -> io::Result<()> {
    // SAFETY: the settings are valid, and outlive the call.
    match unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How many rows the terminal has.
pub(super) fn rows() -> usize {
    // SAFETY: a struct of numbers, for which all zeros is a value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a winsize to where one is.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if result == 0 && size.ws_row > 0 { usize::from(size.ws_row) } else { 24 }
}
