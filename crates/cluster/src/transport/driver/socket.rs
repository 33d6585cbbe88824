//! One connection's bytes: TCP with the options that notice silence, under TLS or bare.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::{CertificateError, OtherError};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsStream;

use super::carrier::Carrier;
use super::silence::Silence;
use crate::transport::Down;
use crate::transport::refusal::Refusal;

/// A TCP connection that reads ahead and can change runtimes.
///
/// rustls asks for 4 KiB at a time, less than a record; one larger read and a copy are cheaper than
/// four system calls.
#[derive(Debug)]
pub(super) struct Socket {
    /// Always there, except within `carry_data_on`.
    carrier: Option<Carrier>,
    /// What was read and is not yet asked for lies at `start..end`.
    ahead: Box<[u8]>,
    /// How long it is to be, now and at most.
    ahead_len: usize,
    ahead_max: usize,
    start: usize,
    end: usize,
    /// Its place in the list of what the switch can cut.
    #[cfg(feature = "switch")]
    cuttable: Option<std::sync::Arc<socket2::Socket>>,
}

impl Socket {
    pub(super) fn new(carrier: Carrier, silence_max: Duration) -> io::Result<Self> {
        match &carrier {
            Carrier::Tcp(tcp) => Self::notice_silence(tcp, silence_max)?,
            // A simulated network ends by itself what nobody answers.
            #[cfg(feature = "simulation")]
            Carrier::Simulated(_) => {}
        }
        Ok(Self {
            carrier: Some(carrier),
            ahead: Box::default(),
            ahead_len: AHEAD_SMALL,
            ahead_max: AHEAD_SMALL,
            start: 0,
            end: 0,
            #[cfg(feature = "switch")]
            cuttable: None,
        })
    }

    fn notice_silence(tcp: &TcpStream, silence_max: Duration) -> io::Result<()> {
        tcp.set_nodelay(true)?;
        let socket = SockRef::from(tcp);
        // While nothing is sent, probes stand in for it: the first after half of the time, so that
        // all of it is over when several went unanswered.
        let step = (silence_max / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time((silence_max / 2).max(step));
        #[cfg(target_os = "linux")]
        let keepalive = keepalive.with_interval(step).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(silence_max))?;
        Ok(())
    }

    /// Puts the connection within the switch's reach.
    #[cfg(feature = "switch")]
    fn cut_by(&mut self, switch: &super::Switch, peer: &crate::Address) -> io::Result<()> {
        if let Some(Carrier::Tcp(tcp)) = &self.carrier {
            self.cuttable = Some(switch.enter(peer, tcp)?);
        }
        Ok(())
    }

    /// From now on a peer that takes no data is waited for; see `silence`.
    fn be_patient(&self, silence_max: Duration) -> io::Result<Silence> {
        let tcp = match &self.carrier {
            Some(Carrier::Tcp(tcp)) => tcp,
            #[cfg(feature = "simulation")]
            Some(Carrier::Simulated(_)) => return Ok(Silence::left_to_the_network()),
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        #[cfg(target_os = "linux")]
        SockRef::from(tcp).set_tcp_user_timeout(None)?;
        Silence::new(tcp, silence_max)
    }

    fn carry_data_on(&mut self, handle: &Handle) -> io::Result<()> {
        self.ahead_max = AHEAD_LARGE;
        self.carrier = Some(match self.carrier.take() {
            Some(Carrier::Tcp(tcp)) => {
                let tcp = tcp.into_std()?;
                let _context = handle.enter();
                Carrier::Tcp(TcpStream::from_std(tcp)?)
            }
            #[cfg(feature = "simulation")]
            Some(simulated) => simulated,
            None => return Err(io::ErrorKind::NotConnected.into()),
        });
        Ok(())
    }

    fn carrier(&mut self) -> io::Result<Pin<&mut Carrier>> {
        self.carrier.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.start == this.end {
            // Room enough: straight into it.
            if into.remaining() >= this.ahead_len {
                return this.carrier()?.poll_read(context, into);
            }
            if this.ahead.len() != this.ahead_len {
                this.ahead = vec![0; this.ahead_len].into();
            }
            let mut ahead = std::mem::take(&mut this.ahead);
            let mut read = ReadBuf::new(&mut ahead);
            let polled = this.carrier()?.poll_read(context, &mut read);
            let filled = read.filled().len();
            this.ahead = ahead;
            ready!(polled)?;
            (this.start, this.end) = (0, filled);
            // Who has much to say gets more room; most links are quiet.
            if filled == this.ahead_len {
                this.ahead_len = (filled * 4).min(this.ahead_max);
            }
        }
        let take = into.remaining().min(this.end - this.start);
        into.put_slice(&this.ahead[this.start..this.start + take]);
        this.start += take;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().carrier()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().carrier()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().carrier()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().carrier()?.poll_shutdown(context)
    }
}

/// A connection, protected or not.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    /// From now on a peer that takes no data is waited for, unless it is silent altogether.
    pub(super) fn be_patient(&self, silence_max: Duration) -> io::Result<Silence> {
        match self {
            Self::Plain(socket) => socket.be_patient(silence_max),
            Self::Tls(tls) => tls.get_ref().0.be_patient(silence_max),
        }
    }

    /// Puts the connection within the switch's reach.
    #[cfg(feature = "switch")]
    pub(super) fn cut_by(
        &mut self,
        switch: &super::Switch,
        peer: &crate::Address,
    ) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.cut_by(switch, peer),
            Self::Tls(tls) => match &mut **tls {
                TlsStream::Client(tls) => tls.get_mut().0.cut_by(switch, peer),
                TlsStream::Server(tls) => tls.get_mut().0.cut_by(switch, peer),
            },
        }
    }

    /// Makes it fit for much data, under the eyes of another runtime's reactor from now on.
    pub(super) fn carry_data_on(&mut self, handle: &Handle) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.carry_data_on(handle),
            Self::Tls(tls) => match &mut **tls {
                TlsStream::Client(tls) => tls.get_mut().0.carry_data_on(handle),
                TlsStream::Server(tls) => tls.get_mut().0.carry_data_on(handle),
            },
        }
    }
}

/// Passes a call on to whichever stream it is.
macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_read(context, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_shutdown(context))
    }
}

/// Why a greeting failed, from an error of the connection beneath it.
pub(super) fn refusal(error: &io::Error) -> Refusal {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(alert)) => {
            Refusal::ByPeer(format!("TLS alert {alert:?}; its log says why"))
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))) => {
            match inner.downcast_ref::<Refusal>() {
                Some(refusal) => refusal.clone(),
                None => Refusal::Tls(inner.to_string()),
            }
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Refusal::Tls("its certificate is not signed by an authority of our ca.pem".into())
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
            Refusal::Tls("its certificate is revoked by our crl.pem".into())
        }
        Some(other) => Refusal::Tls(other.to_string()),
        None => Refusal::Cut(error.to_string()),
    }
}

/// Why a link ended, from an error of the connection beneath it.
pub(super) fn cut(error: &io::Error) -> Down {
    match error.kind() {
        // TLS has a goodbye of its own; rustls's words for its absence are for programmers.
        io::ErrorKind::UnexpectedEof => Down::Cut("it ended without a goodbye".into()),
        _ => Down::Cut(error.to_string()),
    }
}

/// Whether plaintext may be spoken with this address.
pub(super) fn is_this_machine(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Enough for strangers and heartbeats.
const AHEAD_SMALL: usize = 4 << 10;
const AHEAD_LARGE: usize = 64 << 10;
