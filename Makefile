# Envoy's version for the lab; ENVOY=/path runs another binary instead.
ENVOY_VERSION ?= 1.40.0

.PHONY: envoy
envoy: ## Install Envoy's release binary into .envoy/<version>
ifeq ($(ENVOY),)
	@integration/envoy.sh $(ENVOY_VERSION)
endif
