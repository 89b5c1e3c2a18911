//! Continuing a text whose stream broke when the client had some of it already (routing spec 10.4).
//!
//! Nothing is replayed: the provider is asked to go on behind the text so far, and the client gets what is new. Chat Completions only. A Responses
//! stream numbers its events, names its items and repeats the whole output at its end, so that a second answer cannot pass for the rest of the first.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::HeaderMap;

use super::source::Source;
use super::trail::Trail;
use crate::gateway::upstream::BodyError;
use crate::protocol::Dialect;

/// How often a broken stream is opened again, and how often a broken text is continued.
pub const MAX_RECOVERIES: u32 = 4;

/// Sends the request of a broken stream again, so that the answer goes on behind a text.
pub trait Resume<B>: Send + Sync {
    /// Asks for the rest of `text`, through the same admission as every call. Answers the head and the body of a 2xx event stream.
    fn resume(self: Arc<Self>, text: String) -> Answer<B>;

    /// What became of an attempt; called once for each.
    fn settled(&self, outcome: Recovered);
}

/// Why an answer cannot be continued.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ResumeError {
    /// It may work the next time.
    #[error("{0}")]
    Broken(String),
    /// It will not work: the provider refuses, the request is of the wrong kind, or nothing may be sent now.
    #[error("{0}")]
    Refused(String),
}

/// What became of an attempt to recover a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// It led to an answer.
    Yes,
    /// It broke again, or the provider did not answer it.
    No,
    /// Nothing was sent: the request, or a local limit, does not allow it.
    Refused,
    /// The client left meanwhile.
    Aborted,
}

/// The answer to a request for the rest.
pub type Answer<B> = BoxFuture<'static, Result<(HeaderMap, B), ResumeError>>;

/// Why the stream broke, for the case that it cannot be continued.
pub(super) type Cause = (&'static str, String);

/// The attempts to continue one answer.
pub(super) struct Continuation<B> {
    resume: Arc<dyn Resume<B>>,
    left: u32,
    opening: Option<(Answer<B>, Box<Trail>)>,
    /// An attempt runs whose outcome is not known.
    unsettled: bool,
    cause: Option<Cause>,
}

impl<B> Continuation<B> {
    pub fn new(resume: Arc<dyn Resume<B>>) -> Self {
        Self { resume, left: MAX_RECOVERIES, opening: None, unsettled: false, cause: None }
    }

    /// True while a request for the rest is on its way.
    pub const fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// True while the outcome of an attempt is not known.
    pub const fn is_running(&self) -> bool {
        self.unsettled
    }

    /// Asks for the rest behind this trail; gives the cause back when there is no attempt left.
    pub fn begin(&mut self, trail: Box<Trail>, cause: Cause) -> Result<(), Cause> {
        self.settle(Recovered::No);
        if self.left == 0 {
            return Err(cause);
        }
        self.left -= 1;
        self.unsettled = true;
        let request = Arc::clone(&self.resume).resume(trail.text().to_owned());
        self.opening = Some((request, trail));
        self.cause = Some(cause);
        Ok(())
    }

    /// The request for the rest took too long.
    pub fn give_up(&mut self) -> Option<(Box<Trail>, Cause)> {
        let (_, trail) = self.opening.take()?;
        Some((trail, self.cause.take()?))
    }

    /// What became of the attempt that runs, if its outcome is not known yet.
    pub fn settle(&mut self, outcome: Recovered) {
        if std::mem::take(&mut self.unsettled) {
            self.resume.settled(outcome);
        }
    }

    /// Ready when the request for the rest was answered, or finally failed.
    pub fn poll(&mut self, cx: &mut Context<'_>, dialect: Dialect) -> Poll<Result<Box<Source<B>>, Cause>>
    where
        B: http_body::Body<Data = bytes::Bytes, Error = BodyError> + Unpin,
    {
        loop {
            let Some((request, _)) = &mut self.opening else { return Poll::Pending };
            let answer = std::task::ready!(Pin::new(request).poll(cx));
            let (Some((_, trail)), Some(cause)) = (self.opening.take(), self.cause.take()) else { return Poll::Pending };
            let failure = match answer {
                Ok((headers, body)) => match Source::new(body, &headers, dialect) {
                    Ok(source) => return Poll::Ready(Ok(Box::new(source.with_trail(Some(trail.joined()))))),
                    Err(message) => ResumeError::Refused(message),
                },
                Err(error) => error,
            };
            tracing::debug!("continuing a stream: {failure}");
            match failure {
                ResumeError::Refused(_) => {
                    self.settle(Recovered::Refused);
                    return Poll::Ready(Err(cause));
                }
                ResumeError::Broken(_) => {
                    if let Err(cause) = self.begin(trail, cause) {
                        return Poll::Ready(Err(cause));
                    }
                }
            }
        }
    }
}

impl<B> Drop for Continuation<B> {
    fn drop(&mut self) {
        self.settle(Recovered::Aborted);
    }
}
