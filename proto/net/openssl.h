/* SPDX-License-Identifier: Apache-2.0 */
/* openssl.h: the functions of OpenSSL 3 that tls.c and tls_io.c call. They are loaded when TLS is
 * asked for, so that neither a daemon nor a trainer needs the library without it. A call is written
 * ssl->SSL_new(ctx). */
#ifndef SHARD_NET_OPENSSL_H
#define SHARD_NET_OPENSSL_H

#include "base/status.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#define OPENSSL_NAMES(X)                                                                           \
	X(ASN1_TIME_to_tm)                                                                         \
	X(BIO_ctrl)                                                                                \
	X(BIO_clear_flags)                                                                         \
	X(BIO_free)                                                                                \
	X(BIO_get_data)                                                                            \
	X(BIO_meth_free)                                                                           \
	X(BIO_meth_new)                                                                            \
	X(BIO_meth_set_ctrl)                                                                       \
	X(BIO_meth_set_read)                                                                       \
	X(BIO_meth_set_write)                                                                      \
	X(BIO_new)                                                                                 \
	X(BIO_new_mem_buf)                                                                         \
	X(BIO_new_socket)                                                                          \
	X(BIO_set_data)                                                                            \
	X(BIO_set_flags)                                                                           \
	X(BIO_set_init)                                                                            \
	X(ERR_clear_error)                                                                         \
	X(ERR_get_error)                                                                           \
	X(ERR_peek_last_error)                                                                     \
	X(ERR_reason_error_string)                                                                 \
	X(EVP_PKEY_free)                                                                           \
	X(PEM_read_bio_PrivateKey)                                                                 \
	X(SSL_CIPHER_find)                                                                         \
	X(SSL_CIPHER_get_name)                                                                     \
	X(SSL_CTX_check_private_key)                                                               \
	X(SSL_CTX_ctrl)                                                                            \
	X(SSL_CTX_free)                                                                            \
	X(SSL_CTX_get0_certificate)                                                                \
	X(SSL_CTX_get_cert_store)                                                                  \
	X(SSL_CTX_load_verify_file)                                                                \
	X(SSL_CTX_new)                                                                             \
	X(SSL_CTX_set_ciphersuites)                                                                \
	X(SSL_CTX_set_msg_callback)                                                                \
	X(SSL_CTX_set_num_tickets)                                                                 \
	X(SSL_CTX_set_options)                                                                     \
	X(SSL_CTX_set_psk_find_session_callback)                                                   \
	X(SSL_CTX_set_psk_use_session_callback)                                                    \
	X(SSL_CTX_set_verify)                                                                      \
	X(SSL_CTX_set_session_id_context)                                                          \
	X(SSL_CTX_use_PrivateKey)                                                                  \
	X(SSL_CTX_use_certificate_chain_file)                                                      \
	X(SSL_SESSION_free)                                                                        \
	X(SSL_SESSION_new)                                                                         \
	X(SSL_SESSION_set1_id_context)                                                             \
	X(SSL_SESSION_set1_master_key)                                                             \
	X(SSL_SESSION_set_cipher)                                                                  \
	X(SSL_SESSION_set_protocol_version)                                                        \
	X(SSL_do_handshake)                                                                        \
	X(SSL_export_keying_material)                                                              \
	X(SSL_free)                                                                                \
	X(SSL_get1_peer_certificate)                                                               \
	X(SSL_get_current_cipher)                                                                  \
	X(SSL_get_error)                                                                           \
	X(SSL_get_ex_data)                                                                         \
	X(SSL_get_verify_result)                                                                   \
	X(SSL_has_pending)                                                                         \
	X(SSL_is_init_finished)                                                                    \
	X(SSL_key_update)                                                                          \
	X(SSL_new)                                                                                 \
	X(SSL_read_ex)                                                                             \
	X(SSL_session_reused)                                                                      \
	X(SSL_set1_host)                                                                           \
	X(SSL_set_accept_state)                                                                    \
	X(SSL_set_bio)                                                                             \
	X(SSL_set_connect_state)                                                                   \
	X(SSL_set_ex_data)                                                                         \
	X(SSL_set_hostflags)                                                                       \
	X(SSL_shutdown)                                                                            \
	X(SSL_write_ex)                                                                            \
	X(TLS_method)                                                                              \
	X(X509_STORE_CTX_free)                                                                     \
	X(X509_STORE_CTX_get_error)                                                                \
	X(X509_STORE_CTX_init)                                                                     \
	X(X509_STORE_CTX_new)                                                                      \
	X(X509_check_host)                                                                         \
	X(X509_check_purpose)                                                                      \
	X(X509_free)                                                                               \
	X(X509_get0_notAfter)                                                                      \
	X(X509_verify_cert)                                                                        \
	X(X509_verify_cert_error_string)

struct openssl {
#define OPENSSL_FIELD(name) __typeof__(&name) name;
	OPENSSL_NAMES(OPENSSL_FIELD)
#undef OPENSSL_FIELD
};

/* The library, once it is loaded. It stays loaded. SHARD_SYSTEM says what to install. Threads may
 * call it at the same time. */
enum shard_status openssl_load(const struct openssl **out, struct err *e);

#endif
