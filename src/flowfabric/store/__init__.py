"""The ports: what the operations need from a store, one small protocol per aggregate. No decisions here."""
