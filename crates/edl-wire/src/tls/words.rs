//! Puts the errors of a TLS session into words.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Returns the words for an error of TLS; `None` for other errors.
pub(crate) fn words_of(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    Some(words(inner))
}

/// Says what went wrong; "it" is the other end.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(certificate) => of_its_certificate(certificate),
        Error::NoCertificatesPresented => {
            "it shows no certificate; expected one that this job's authority has signed".to_owned()
        }
        Error::AlertReceived(alert) => of_our_certificate(*alert),
        Error::InvalidMessage(_) => {
            "expected TLS 1.3, found something else; is --tls the same in all processes of the job?"
                .to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

fn of_its_certificate(error: &CertificateError) -> String {
    let words = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; was it renewed, and do the clocks agree?"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; do the clocks agree?"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is not signed by this job's authority; does the address belong to \
             this job?"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            return format!("its certificate is that of another role: {error}");
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is that of another role, which may not do this"
        }
        other => return format!("its certificate is refused: {other}"),
    };
    words.to_owned()
}

fn of_our_certificate(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateRequired => "it expects a certificate, and got none",
        AlertDescription::CertificateExpired => {
            "it refuses this process's certificate: expired, by its clock"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it refuses this process's certificate: not signed by the authority that it knows; \
             does the address belong to this job?"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            "it refuses this process's certificate: bad, or that of another role"
        }
        other => return format!("it ended the TLS session: {other:?}"),
    };
    why.to_owned()
}
