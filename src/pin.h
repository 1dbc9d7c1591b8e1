/*-------------------------------------------------------------------------
 *
 * pin.h
 *	  What a session may not choose for itself.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_PIN_H
#define IDEM_PIN_H

extern void IdemRestoreSettings(void);
extern const char *IdemPinnedClient(void);
extern void IdemCheckPin(text *client);

#endif							/* IDEM_PIN_H */
