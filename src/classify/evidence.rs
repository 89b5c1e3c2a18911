//! What was seen in an attempt: one bit per kind of evidence. Rows of the tables ask for bits, never for text.

/// One kind of evidence. The phrases behind each are in [`super::phrases`], the codes in [`super::codes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Evidence {
    /// 7.3 a, and operator signals: the account, organization or key is gone.
    AccountDead,
    /// 7.3 b: the model is retired.
    Retired,
    /// 7.3 c: the endpoint has moved.
    Moved,
    /// 7.3 c: the broad wording of it.
    NoLongerWorks,
    /// 7.3 d: suspended for billing.
    SuspendedBilling,
    /// 7.2 e: the text names Google's quota metrics.
    GeminiMetric,
    /// 7.2 e: a metric per day.
    GeminiPerDay,
    /// 7.2 e: a metric of tokens or requests.
    GeminiShort,
    /// 7.3 f: no money, unambiguous.
    Credits,
    /// 7.3 f: the wording that Google also uses for short limits; a declared short wait vetoes it.
    CreditsWeak,
    /// 7.3 f: the wallet of the whole account is empty.
    Balance,
    /// 7.3 g: a daily quota.
    Daily,
    /// 7.3 g: `try again tomorrow`, weaker than the other daily phrases.
    Tomorrow,
    /// 7.4 1: tokens per day; the reset is never guessed.
    TokensPerDay,
    /// 7.3 g: the organization's tokens per day.
    TpdLimit,
    /// 7.3 h: a subscription's usage limit.
    Subscription,
    /// 7.3 h: Claude's own wording.
    SubscriptionClaude,
    /// 7.3 i: a weekly quota.
    Weekly,
    /// 7.3 j: a session's usage limit.
    Session,
    /// 7.2 k.
    Rolling24h,
    /// 7.2 m: the key is not made for this route.
    RouteForbidden,
    /// 6.7 row 11: Cloudflare 1010.
    Fingerprint,
    /// 6.7 row 11: Cloudflare's challenge page.
    Challenge,
    /// 5.6: too many at the same time.
    Concurrency,
    /// 8.1: an explicit quota phrase.
    QuotaPhrase,
    /// 8.1, group caps: broad.
    QuotaCaps,
    /// 8.1 marked ⁺: beats even a short declared wait.
    QuotaTerminal,
    /// 7.6: quota words that matter only beside a hint.
    QuotaWords,
    /// Interface 5: a limit per day.
    PerDay,
    /// 7.5 text row 1.
    NoCredentials,
    /// 7.5 text row 2.
    RequestNotAllowed,
    /// 7.5 text row 3.
    ImproperlyFormed,
    /// 7.5 text row 4, and the codes for it.
    RateLimit,
    /// 7.5 text row 5.
    TooManyRequests,
    /// 7.5 text rows 6–12.
    QuotaText,
    /// 7.5 text rows 13–15.
    Capacity,
    /// 3.5 and decisions 3.1: overload, which never counts for the breaker.
    Overload,
    /// 7.5 context overflow.
    ContextOverflow,
    /// 7.5 context overflow, the broad wordings.
    TokenLimit,
    /// 7.5 model access.
    ModelAccess,
    /// 7.5 model access, the rows on permissions.
    ModelPermission,
    /// 7.5 key problem.
    KeyProblem,
    /// 7.5 key problem, the wordings with `token`.
    TokenProblem,
    /// Words that tell a token of text from a credential.
    TokenOfText,
    /// 7.5 malformed.
    Malformed,
    /// 7.5 malformed: names of functions and tool calls.
    FunctionName,
    /// 7.5 parameter.
    Parameter,
    /// 7.5 rate-limit words.
    RateWords,
    /// 7.5 NIM degraded.
    NimDegraded,
    /// 6.7 row 4: a resource of the request.
    RequestResource,
    /// 6.7 row 4: not found.
    NotFoundText,
    /// 6.7 row 6.
    OAuthInvalid,
    /// 6.7 row 7.
    ModelNotSupported,
    /// 6.7 row 10.
    Geo,
    /// 6.7 row 13.
    RequestRejected,
    /// 6.7 row 14.
    Project,
    /// 6.7 row 14, cloud-code providers only.
    ProjectDisabled,
    /// 6.7 row 14, kiro and amazon-q only.
    ProjectKiro,
    /// 6.7 row 14, opencode family only.
    FreeTierOnly,
    /// 6.7 row 15.
    Sentinel,
    /// 6.7 row 19.
    GcpProject,
    /// 3.5: the client went away.
    ClientAbort,
    /// 3.5: local stream lifecycle, local limiter, local execution, own proxy.
    LocalFailure,
    /// 3.5: the bridge of chatgpt-web.
    BridgeFailure,
    /// Decisions 1.11: another gateway names its own deadline.
    PeerCooldown,
    /// 7.1 row 0.
    ContractViolation,
    /// 7.1 row 1.
    ResponseBinding,
    /// Decisions 9.12: the vendor does not know the response id.
    UnknownResponse,
    /// 7.1 row 2.
    SupervisorHint,
    /// 7.5 400 row 3: code.
    ModelNotFoundCode,
    /// 7.5 400 row 3: type `permission_error`.
    PermissionType,
    /// 8.3: zone-less instants are UTC+8.
    ChinaTime,
    /// 9.2 opencode 1.
    EndpointUnavailable,
    /// 9.2 opencode 2.
    MonthlyUsage,
    /// 9.2 opencode 5.
    PlanQuotaCode,
    /// 9.2 opencode 6.
    ModelUnavailable,
    /// 9.2 opencode 3.
    NoRequestsLeft,
    /// 9.2 opencode 4.
    NoTokensLeft,
    /// 9.2 minimax 1.
    ModelQuotaSpent,
    /// 9.2 cloudflare 1.
    FreeAllocation,
    /// 9.2 agentrouter 1, 10.
    UserQuota,
    /// 9.2 agentrouter 2.
    ModelDenied,
    /// 10: veto.
    AccessDenied,
}

/// A set of [`Evidence`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen(u128);

impl Seen {
    /// The set of these kinds.
    #[must_use]
    pub const fn of(kinds: &[Evidence]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < kinds.len() {
            bits |= 1 << kinds[i] as u32;
            i += 1;
        }
        Self(bits)
    }

    /// Adds one kind.
    pub fn add(&mut self, kind: Evidence) {
        self.0 |= 1 << kind as u32;
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// True when one kind is there.
    #[must_use]
    pub const fn has(self, kind: Evidence) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    /// True when the two sets share a kind.
    #[must_use]
    pub const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// True when nothing was seen.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seen({:x})", self.0)
    }
}
