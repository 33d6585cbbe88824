//! A server that a test starts for itself, with settings of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_lease::Moment;

use super::port::free_port;
use super::support::{program, run};

pub(crate) struct OwnServer {
    pub(crate) folder: PathBuf,
    port: u16,
    server: Option<Child>,
}

impl OwnServer {
    /// Makes a database cluster with these options of initdb, and starts nothing yet.
    pub(crate) fn new(stem: &str, options: &[&str]) -> Self {
        let own = Self::folder(stem);
        own.make("initdb", &[&["-U", "postgres", "--no-sync"], options].concat());
        own
    }

    /// A standby of one that runs; starts nothing yet.
    pub(crate) fn standby_of(&self, stem: &str) -> Self {
        let (own, port) = (Self::folder(stem), self.port.to_string());
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-R", "-c", "fast", "-N"];
        own.make("pg_basebackup", &from);
        own
    }

    fn folder(stem: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tenure-{stem}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).unwrap();
        // The server refuses one that others can read.
        std::fs::set_permissions(folder.join("data"), PermissionsExt::from_mode(0o700)).unwrap();
        let own = Self { folder, port: free_port(), server: None };
        own.give("data");
        own
    }

    fn make(&self, program: &str, options: &[&str]) {
        let made = run(self.command(program, &[]).args(options));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Gives a file in the folder to the server's user.
    pub(crate) fn give(&self, file: &str) {
        if is_root() {
            let given = run(Command::new("chown").arg("postgres:").arg(self.folder.join(file)));
            assert!(given.status.success(), "there is no user postgres");
        }
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn start(&mut self, environment: &[String], settings: &[String]) {
        let mut command = self.command("postgres", environment);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        for setting in ["unix_socket_directories=".to_owned()].iter().chain(settings) {
            command.args(["-c", setting]);
        }
        self.server = Some(command.stderr(Stdio::null()).spawn().unwrap());
        let begun = Moment::now();
        let ready = ["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()];
        while !run(program("pg_isready").args(ready)).status.success() {
            assert!(Moment::now() < begun + Duration::from_secs(30), "the server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A fast shutdown.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = run(Command::new("kill").args(["-INT", &server.id().to_string()]));
            let _ = server.wait();
        }
    }

    /// It is gone at once, with whatever it has not passed on.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = run(Command::new("kill").args(["-QUIT", &server.id().to_string()]));
            let _ = server.wait();
        }
    }

    /// HOST:PORT.
    pub(crate) fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn psql(&self, statement: &str) {
        let done = run(program("psql").args(["-XqAt", "-c", statement, &self.url("postgres")]));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    pub(crate) fn url(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port)
    }

    /// A program of the server's, as its user: it refuses to run as root.
    fn command(&self, name: &str, environment: &[String]) -> Command {
        // The environment is set after the user was changed: a preloaded library may share memory.
        let mut command = Command::new(if is_root() { "setpriv" } else { "env" });
        if is_root() {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "env"]);
        }
        command.args(environment).arg(program(name).get_program());
        command.arg("-D").arg(self.folder.join("data"));
        command
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).stdout == b"0\n"
}
